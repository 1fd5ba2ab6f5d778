"""A reader ends and its process goes on: no engine, thread, descriptor of it stays behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edl.distill_reader import Callback, DistilReader, LabelStore
from edl.distill_reader.callbacks import Callbacks
from edl.distill_reader.janitor import Janitor
from edl.distill_reader.puller import Puller
from edl.proto.channel import Channel
from edl.supervise import Process
from edl.tests.distill_reader.test_reader import Batches, check_epoch, reader_of, until
from edl.tests.ground.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher

BOUND_S = 5.0


@pytest.fixture(scope="module")
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    teacher.parameters = {"content_id": "model-1"}
    yield teacher
    teacher.stop()


class Holdings:
    """Descriptors of this process, once no thread of a reader is left."""

    def __init__(self) -> None:
        until(lambda: not self.now()[1])
        self.fds, _ = self.now()

    def now(self) -> tuple[int, list[str]]:
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        return len(os.listdir("/proc/self/fd")), [n for n in names if n.startswith("edl-")]

    def are_back(self) -> bool:
        fds, threads = self.now()
        return fds <= self.fds and not threads

    def check(self) -> None:
        """They come back."""
        with suppress(AssertionError):  # which would not say what is still there
            until(self.are_back, BOUND_S)
        assert self.are_back(), (self.fds, self.now())


OPTIONS: dict[str, Callable[[ScriptedTeacher, Path], dict[str, Any]]] = {
    "a store": lambda _, folder: {"store": LabelStore(folder / "labels.edl", 1 << 20)},
    "a timeline": lambda _, folder: {"trace": folder / "run.json"},
    "callbacks": lambda _, folder: {"callbacks": [Callback()]},
    "several services": lambda teacher, _: {
        "service": {"a": 0.7, "b": 0.3},
        "teachers": {name: [teacher.address] for name in "ab"},
    },
}


def fails_in_the_loop(reader: DistilReader) -> None:
    def train() -> None:
        with reader:
            for x, *_ in reader:
                raise ZeroDivisionError(x)

    with pytest.raises(ZeroDivisionError):
        train()


def is_dropped_in_a_cycle(reader: DistilReader) -> None:
    def batches() -> Iterator[Any]:
        yield from reader

    iterator = batches()
    next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)


def is_closed_while_it_starts(reader: DistilReader) -> None:
    reader.close()


@pytest.mark.parametrize(
    "end", [fails_in_the_loop, is_dropped_in_a_cycle, is_closed_while_it_starts]
)
def test_it_gives_everything_back(
    end: Callable[[DistilReader], None], teacher: ScriptedTeacher, tmp_path: Path
) -> None:
    """Four readers at once, each with an option of its own."""
    with reader_of(Batches(2), teacher) as reader:  # what stays for good: the pipe of lives
        list(reader)
    before = Holdings()
    pids = []
    for make in OPTIONS.values():
        reader = DistilReader(
            Batches(200),
            **{"service": "s", "teachers": [teacher.address], **make(teacher, tmp_path)},
        )
        pids.append(reader.engine_pid)
        end(reader)
        del reader
    gc.collect()
    wait_gone(pids, BOUND_S)
    before.check()


# --- Ctrl-C at the worst moments


@pytest.mark.parametrize(
    ("where", "method"),
    [
        (threading.Thread, "start"),
        (Puller, "__init__"),
        (Janitor, "__init__"),
        (Callbacks, "start"),
        (Process, "__init__"),
    ],
)
def test_ctrl_c_while_a_reader_is_made(
    where: type, method: str, teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Holdings()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader_of(Batches(3), teacher)
    before.check()


@pytest.mark.parametrize("method", ["send", "close"])
def test_a_close_that_ctrl_c_has_ended_is_done_again(
    method: str, teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Holdings()
    reader = reader_of(Batches(100), teacher)
    epoch = iter(reader)  # an epoch that nobody holds is left, by the channel that is patched
    next(epoch)
    pid = reader.engine_pid

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Channel, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.close()
    reader.close()
    wait_gone([pid], BOUND_S)
    del epoch, reader
    before.check()


def test_ctrl_c_while_it_waits_for_a_teacher_and_again() -> None:
    with DistilReader(Batches(3), service="s", teachers=["127.0.0.1:9"]) as reader:

        def wait_and_be_interrupted() -> None:
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            list(reader)

        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                wait_and_be_interrupted()


def test_a_callback_that_ends_the_program_costs_no_batch(teacher: ScriptedTeacher) -> None:
    class Ends(Callback):
        def on_batch(self, samples: int, waited_s: float) -> None:
            if not ended:
                ended.append(samples)
                sys.exit(3)

    ended: list[int] = []
    source = Batches(30)
    with reader_of(source, teacher, callbacks=[Ends()]) as reader:
        iterator = iter(reader)
        with pytest.raises(SystemExit):
            next(iterator)
        assert reader.stats.delivered == 1
        rest = list(iterator)
        assert [int(ids[0]) for _, ids, _ in rest] == list(range(1, 30))
        del rest
        gc.collect()
        until(lambda: reader.stats.volume_bytes == 0)
        check_epoch(source, list(reader))
