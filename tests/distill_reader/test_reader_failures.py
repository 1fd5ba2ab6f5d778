"""Engines that die, teachers that are missing or refuse, and pools whose teachers differ."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import CanaryPolicy, DistilReader, LabelStore
from edl.distill_reader.options import TLS, Limits, Timeouts
from edl.proto.arena import Array
from edl.proto.security.credentials import ServerSecurity
from edl.proto.tensors import InferRequest
from edl.runtime.errors import NoTeacherAvailable
from edl.tests.distill_reader.conftest import StartTeacher
from edl.tests.distill_reader.readers import (
    NOBODY,
    ROWS,
    Batches,
    check_epoch,
    numbers_of,
    reader_of,
)
from edl.tests.leaks import open_files
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.runtime.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher, label, logits_of
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system

# --- an engine dies


def kill(reader: DistilReader) -> None:
    os.kill(reader.engine_pid, signal.SIGKILL)


def test_death_with_nothing_in_the_ring_and_nothing_allowed(teacher: ScriptedTeacher) -> None:
    """The next engine sees no batch, and yet has to allow those behind the ones gone by."""
    source = Batches(50)
    with reader_of(source, teacher, upper_bytes=1, lower_bytes=0) as reader:
        iterator = iter(reader)
        batches = [next(iterator)]
        wait_until(lambda: all_are_labelled(reader) and reader.stats.state == "blocked")
        os.kill(reader.engine_pid, signal.SIGSTOP)
        while len(batches) < reader.stats.yielded:
            batches.append(next(iterator))
        kill(reader)
        batches += iterator
        assert reader.stats.engine_restarts == 1
    check_epoch(source, batches)


def all_are_labelled(reader: DistilReader) -> bool:
    stats = reader.stats
    return stats.ready == stats.yielded - stats.delivered > 0


def test_death_around_the_change_of_epochs(teacher: ScriptedTeacher) -> None:
    source = Batches(30)
    with reader_of(source, teacher) as reader:
        for taken in (0, 1, 30):  # three deaths: a fifth within a minute would be one too many
            iterator = iter(reader)
            assert numbers_of(list(itertools.islice(iterator, taken))) == [*range(taken)]
            kill(reader)
            del iterator
            check_epoch(source, list(reader))
        assert reader.stats.engine_restarts == 3


def test_the_memory_of_a_dead_engine_goes_with_its_labels(teacher: ScriptedTeacher) -> None:
    source = Batches(400, shape=(64,))
    with reader_of(source, teacher, upper_bytes=100_000) as reader:
        iterator = iter(reader)
        batches: list[Any] = [next(iterator)]
        wait_until(lambda: reader.stats.state == "blocked")
        before = len(open_files("memfd:edl"))  # a mapping has a descriptor of its own
        for deaths in (1, 2):
            pid = reader.engine_pid
            kill(reader)
            wait_until(lambda: reader.stats.engine_restarts == deaths)  # noqa: B023
            assert reader.engine_pid != pid, "a restart counts once the new engine has its place"
        batches += iterator
        check_epoch(source, batches)
        batches.clear()
        wait_until(lambda: len(open_files("memfd:edl")) <= before)


def test_a_reader_that_is_closed_at_its_engines_death_leaves_none(teacher: ScriptedTeacher) -> None:
    for _ in range(5):
        reader = reader_of(Batches(100), teacher)
        next(iter(reader))
        pids = [reader.engine_pid]
        kill(reader)
        reader.close()
        wait_gone([*pids, reader.engine_pid])


# --- no teacher


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["soft_label"]),
        ({"fetches": ["logits", "hidden"]}, ["logits", "hidden"]),
        (
            {"fetches": ["logits"], "label_form": "topk:2", "expand_labels": False},
            ["logits.values", "logits.indices", "logits.tail"],
        ),
    ],
)
def test_each_soft_label_has_its_none(options: dict[str, Any], names: list[str]) -> None:
    source = [{"x": np.ones((2, 3), np.float32)}]
    policy = {"no_teacher": "hard_only", "timeouts": Timeouts(no_teacher_s=0.0)}
    with reader_of(source, NOBODY, **policy, **options) as reader:
        (batch,) = reader
    assert list(batch) == ["x", *names]
    assert all(batch[name] is None for name in names)


# --- teachers that ask who it is


def test_a_wrong_token_can_be_replaced(start_teacher: StartTeacher, tmp_path: Path) -> None:
    authority, source = Authority(tmp_path / "ca"), Batches(20)
    tokens = write_secret(tmp_path / "tokens", "student good-token\n")
    guarded = start_teacher(security=ServerSecurity(authority.issue("teacher"), tokens))
    files = authority.issue("student", "student:job")
    options = {
        "tls": TLS(files.ca, files.certificate, files.key),
        "token_file": write_secret(tmp_path / "token", "bad-token\n"),
    }
    with reader_of(source, guarded, timeouts=Timeouts(wait_s=3.0), **options) as reader:
        wait_until(lambda: reader.stats.want > 1)  # it has been refused
        with pytest.raises(NoTeacherAvailable, match="rejects this reader's credentials"):
            list(reader)
        assert guarded.requests == 0
        write_secret(tmp_path / "token", "good-token\n")
        wait_until(lambda: reader.stats.teachers)
        check_epoch(source, list(reader))


# --- teachers of one model that differ


class UntilAllHaveServed:
    """A hundred batches, and more until `all_have_served()`."""

    def __init__(self, all_have_served: Callable[[], bool]) -> None:
        self._all_have_served = all_have_served

    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count():
            if number >= 100 and self._all_have_served():
                return
            yield Batches(100).at(number % 100), np.full(ROWS, number)


@pytest.mark.parametrize("rows", [None, 3])
def test_teachers_of_lower_precision_are_believed_and_the_wider_form_wins(
    teacher: ScriptedTeacher, second: ScriptedTeacher, rows: int | None
) -> None:
    second.behaviour = lambda request: {"logits": logits_of(request.inputs["x"]).astype(np.float16)}
    addresses = [teacher.address, second.address]
    source = UntilAllHaveServed(lambda: all(dict(reader.stats.served).get(a) for a in addresses))
    options = {"limits": Limits(request_rows=rows), "canaries": CanaryPolicy(share=0.2)}
    with reader_of(source, *addresses, **options) as reader:
        batches = list(reader)
        stats = reader.stats
    assert numbers_of(batches) == list(range(len(batches)))
    assert all(np.allclose(soft, logits_of(x), rtol=1e-2) for x, _, soft in batches)
    assert (stats.ejections, stats.ejections_for_lying, stats.dispute) == (0, 0, "")
    dtypes = [soft.dtype for _, _, soft in batches]
    wide = dtypes.index(np.dtype(np.float32))
    assert set(dtypes[wide:]) == {np.dtype(np.float32)}


def test_partly_stored_are_sent_whole(teacher: ScriptedTeacher, tmp_path: Path) -> None:
    """By a reader that is to give the same bits, whichever teachers label."""
    store = LabelStore(tmp_path / "labels.edl", 64 << 20)
    teacher.parameters = {"content_id": "c", "numerics_id": "onnx-fp32-1"}
    rows: list[int] = []

    def count(request: InferRequest) -> dict[str, Array]:
        rows.append(len(request.inputs["x"]))
        return label(request)

    teacher.behaviour = count
    samples = np.arange(1, 361, dtype=np.float32).reshape(120, 3)
    for source in (np.split(samples[:60], 10), np.split(samples, 15)):
        with reader_of(source, teacher, deterministic=True, store=store) as reader:
            for x, soft in reader:
                np.testing.assert_array_equal(soft, logits_of(x))
    assert set(rows) == {6, 8}
    assert len(rows) < 10 + 15, "a batch whose labels are all kept is not sent"
