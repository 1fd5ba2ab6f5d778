"""A source of known batches, readers of it over scripted teachers, and known calls of a pool."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edl.distill_reader import Callback, DistilReader, LabelStore, TeacherPool
from edl.distill_reader.pipeline import Pipeline
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.runtime.errors import RetryableError
from edl.tests.scripted_teacher import ScriptedTeacher, label, logits_of
from edl.tests.waiting import DEADLINE_S

ROWS = 4
NOBODY = "127.0.0.1:9"  # where nobody listens


class Batches:
    """A re-iterable of (x, id) batches; what each is can be computed from its number."""

    def __init__(self, count: int, shape: tuple[int, ...] = (3,)) -> None:
        self.count = count
        self.shape = shape

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield self.at(number), np.full(ROWS, number)

    def at(self, number: int) -> Any:
        rows = np.arange(ROWS, dtype=np.float32).reshape(ROWS, *(1 for _ in self.shape))
        return np.broadcast_to(rows + 10 * number, (ROWS, *self.shape)).astype(np.float32)


class Samples:
    """A map-style data set; a sample is its index, as three floats and as an integer."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.full(3, index, np.float32), np.int64(index)


def numbers_of(batches: list[Any]) -> list[int]:
    """The numbers of `Batches` that these are, by their ids."""
    return [int(ids[0]) for _, ids, *_ in batches]


def check_epoch(source: Batches, batches: list[Any]) -> None:
    """Every batch once, in order, with the labels of that batch."""
    assert numbers_of(batches) == list(range(source.count))
    for x, ids, soft in batches:
        np.testing.assert_array_equal(x, source.at(int(ids[0])))
        np.testing.assert_array_equal(soft, logits_of(x))


def reader_of(source: Any, *teachers: ScriptedTeacher | str, **options: Any) -> DistilReader:
    """A reader of service "s" over teachers, or their addresses."""
    addresses = [one if isinstance(one, str) else one.address for one in teachers]
    return DistilReader(source, **{"service": "s", "teachers": addresses, **options})


def all_options(teacher: str, folder: Path) -> dict[str, Any]:
    """Options of a reader of two services, with a store, a trace and callbacks."""
    return {
        "service": {"a": 0.7, "b": 0.3},
        "teachers": {name: [teacher] for name in "ab"},
        "store": LabelStore(folder / "labels.edl", 1 << 20),
        "trace": folder / "run.json",
        "callbacks": [Callback()],
    }


@contextmanager
def kept_port() -> Iterator[int]:
    """A port for a gRPC server; nobody else gets it, and it refuses connections until then."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def fail(request: InferRequest) -> dict[str, Array]:
    """The behaviour of a teacher that fails for now."""
    raise RetryableError("not now")


def answer_nan(request: InferRequest) -> dict[str, Array]:
    """The behaviour of a teacher whose labels are not finite."""
    return {name: np.full_like(labels, np.nan) for name, labels in label(request).items()}


def pool_of(*teachers: ScriptedTeacher | str, **options: Any) -> TeacherPool:
    """A pool of service "s" over teachers, or their addresses."""
    addresses = [one if isinstance(one, str) else one.address for one in teachers]
    settings: dict[str, Any] = {"service": "s", "teachers": addresses, "timeout_s": DEADLINE_S}
    return TeacherPool(**{**settings, **options})


def pipeline_of(user: DistilReader | TeacherPool) -> Pipeline:
    """What a reader or a pool runs on: tests watch its engine, which users cannot."""
    reader = user._reader if isinstance(user, TeacherPool) else user  # noqa: SLF001
    return reader._pipeline  # noqa: SLF001


def x_of(number: int, rows: int = 2) -> Array:
    """The input of a call; what it is can be computed from its number."""
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + 100 * number


def check_labels(number: int, labels: dict[str, Any], rows: int = 2) -> None:
    """The labels of `x_of(number, rows)`."""
    np.testing.assert_array_equal(labels["logits"], logits_of(x_of(number, rows)))


class Gate:
    """A behaviour that answers nothing until it is opened."""

    def __init__(self) -> None:
        self.asked, self.open = 0, threading.Event()

    def __call__(self, request: InferRequest) -> dict[str, Array]:
        self.asked += 1
        self.open.wait(DEADLINE_S)
        return label(request)
