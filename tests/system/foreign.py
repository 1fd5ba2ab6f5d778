"""Foreign servers and their sidecars as real processes, for tests that end them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edl.coordinator.registry import Member
from edl.distill_reader import DistilReader
from edl.supervise import Process, python_command, start
from edl.tests.foreign_server import MODEL, Kind
from edl.tests.scripted_teacher import logits_of
from edl.tests.system.teacher_process import members

SERVICE = "foreign"
START_S = 30.0
ROWS = 4


class Batches:
    """Batches (x, number), each different and known."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield self.at(number), np.full(ROWS, number)

    @staticmethod
    def at(number: int) -> Any:
        return np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 6) + number

    def check(self, batches: list[Any]) -> None:
        """Each once, in order, with the labels of that batch."""
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(self.count))
        for x, numbers, soft in batches:
            np.testing.assert_array_equal(x, self.at(int(numbers[0])))
            np.testing.assert_array_equal(soft, logits_of(x))


@dataclass
class Foreign:
    """A server in a process of its own.

    Attributes:
        process: it.
        address: as a reader dials it.
        mood: what is written there it does from then on (`foreign_server.MOODS`).
    """

    process: Process
    address: str
    mood: Path

    def __enter__(self) -> Foreign:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop(0.0)


def serve(
    kind: Kind, mood: Path, seconds: float = 0.0, port: int = 0, mute: bool = False
) -> Foreign:
    process = start(
        python_command(
            f"foreign-{kind}", "edl.tests.foreign_server", "--kind", kind, "--mood", mood,
            "--seconds", seconds, "--port", port, *(["--mute"] if mute else []),
        )
    )  # fmt: skip
    return Foreign(process, process.expect(r"^ready on (\S+)$", START_S)[1], mood)


@contextmanager
def sidecar(url: str, address: str, *arguments: object, ready: bool = True) -> Iterator[Process]:
    """`edl teacher register` of the server at `address`; returns once it is registered."""
    named = ("--content", "c") if "--canary" not in arguments else ()
    process = start(
        python_command(
            "sidecar", "edl.teacher", "register", "--service", SERVICE, "--endpoint", address,
            "--model", MODEL, "--coordinator", url, "--ttl", 2, "--every", 0.3,
            "--test-every", 0.6, "--timeout", 2, *named, *arguments,
        )
    )  # fmt: skip
    try:
        if ready:
            process.expect(r"^teacher registered: ", START_S)
        yield process
    finally:
        process.stop()


def registered(url: str) -> list[Member]:
    return members(url, SERVICE)


def reader(url: str, batches: Batches, **options: Any) -> DistilReader:
    return DistilReader(
        batches,
        service=SERVICE,
        coordinator=url,
        **{"job": "j", "profiles": None, "teachers_min": 2, "wait_timeout_s": 30.0,
           "lower_bytes": 0, "upper_bytes": 4096, **options},
    )  # fmt: skip
