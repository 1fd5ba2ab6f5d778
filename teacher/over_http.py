"""Whether a teacher speaks the protocol over HTTP besides gRPC, and where."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from ..coordinator.config import join_address

OFF: Final = "off"
#: What the extra "http" installs.
_NEEDED: Final = ("starlette", "uvicorn")


def http_listen(said: str | None, host: str) -> str | None:
    """The HOST:PORT to listen on, as far as it is named; None: HTTP is not spoken.

    Args:
        said: HOST:PORT; PORT, on the host of gRPC; "off"; None: a free port of that host, if what
            HTTP needs is installed.
        host: of gRPC.
    """
    if said is None:
        said = "0" if all(map(find_spec, _NEEDED)) else OFF
    if said == OFF:
        return None
    return join_address(host, int(said)) if said.isascii() and said.isdigit() else said
