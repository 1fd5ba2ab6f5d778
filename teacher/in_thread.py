"""Work of more than a moment, done on another thread than that of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What `work` gives; whoever is cancelled meanwhile waits for its end nevertheless.

    So what it reads and writes can be given back behind this.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([doing])
        raise
    finally:
        del doing  # its error knows this frame: without a circle all of it goes at once
