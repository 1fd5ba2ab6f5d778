"""The random generators of paddle, numpy and python as JSON values, and back."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import CheckpointMismatch

log = logging.getLogger(__name__)


def random_state() -> dict[str, Any]:
    """Where all generators stand: paddle's (if it was imported), numpy's global one, python's."""
    version, words, gauss = random.getstate()
    _, keys, position, *gaussian = np.random.get_state()
    return {
        "python": [version, _packed(np.array(words, np.uint32)), gauss],
        "numpy": [_packed(np.asarray(keys, np.uint32)), int(position), *map(float, gaussian)],
        "paddle": _paddle_state(),
    }


def set_random_state(state: Mapping[str, Any], rank: int = 0) -> None:
    """Go on where `state` stood: rank 0 exactly there, others each at a point of their own.

    The others must not draw what rank 0 draws, and draw the same whenever this is repeated.

    Raises:
        CheckpointMismatch: it is no such state.
    """
    try:
        if rank:
            _seed(state, rank)
            return
        version, words, gauss = state["python"]
        random.setstate((version, tuple(map(int, _unpacked(words))), gauss))
        keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state(("MT19937", _unpacked(keys), position, int(has_gauss), cached))
        _set_paddle_state(state["paddle"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointMismatch(
            f"the checkpoint's random generators cannot be set ({error!r})"
        ) from error


def _seed(state: Mapping[str, Any], rank: int) -> None:
    text = json.dumps([state, rank], sort_keys=True).encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:4])
    random.seed(seed)
    np.random.seed(seed)
    import paddle

    paddle.seed(seed)


def _paddle_state() -> dict[str, Any]:
    import paddle

    kinds = ["cpu", *(["gpu"] if paddle.get_device().startswith("gpu") else [])]
    return {
        kind: [_told(one.__getstate__()) for one in paddle.get_rng_state(kind)] for kind in kinds
    }


def _set_paddle_state(state: Mapping[str, Any]) -> None:
    import paddle

    for kind, told in state.items():
        if kind == "gpu" and not paddle.get_device().startswith("gpu"):
            log.warning("the checkpoint is of a GPU: its random generator has no meaning here")
            continue
        now = paddle.get_rng_state(kind)
        if len(now) != len(told):  # another number of GPUs is visible
            told = [told[0]] * len(now)
        paddle.set_rng_state([_generator(type(now[0]), values) for values in told], kind)


def _generator(kind: Any, values: list[Any]) -> Any:
    """A new one: Paddle does not mind when the state of one that lives is set."""
    made = kind.__new__(kind)
    made.__setstate__(_meant(values))
    return made


def _told(values: tuple[Any, ...]) -> list[Any]:
    """Of Paddle's tuple, numbers and one list of characters, JSON that is no longer than it is."""
    return [bytes(each).decode("ascii") if isinstance(each, list) else each for each in values]


def _meant(values: list[Any]) -> tuple[Any, ...]:
    return tuple(
        list(value.encode("ascii")) if isinstance(value, str) else value for value in values
    )


def _packed(words: np.ndarray[Any, np.dtype[np.uint32]]) -> str:
    return base64.b64encode(words.astype("<u4").tobytes()).decode("ascii")


def _unpacked(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(base64.b64decode(text), "<u4").astype(np.uint32)
