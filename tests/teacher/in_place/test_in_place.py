"""Batches that a teacher on this host reads in the reader's own memory."""

from __future__ import annotations

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edl.errors import DeadlineExceeded, RateLimited, RequestRefused, RetryableError, TeacherLost
from edl.proto.arena import GROWTH_BYTES
from edl.proto.clients import Request, open_client, same_host
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.clients.same_host import SameHostClient
from edl.proto.datatypes import to_bytes
from edl.proto.lent_arena import LentArena
from edl.proto.places import Place
from edl.supervise import python_command, start
from edl.tests.leaks import SHARED_MEMORY, without_neighbours
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.fakes import array
from edl.tests.teacher.in_place.asking import X, doubled, lying, received


def test_the_same_labels_come_by_both_lanes_and_only_one_sends_the_batch(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    assert client.in_place
    in_place = doubled(client, lying(arena))
    assert received(bench) < 200
    sent = doubled(client, X)
    assert received(bench) > X.nbytes
    np.testing.assert_array_equal(in_place, X * 2)
    np.testing.assert_array_equal(in_place, sent)


def test_nothing_has_a_name_that_could_be_left_behind(
    arena: LentArena, client: SameHostClient
) -> None:
    before = frozenset(os.listdir(SHARED_MEMORY))
    doubled(client, lying(arena))
    assert without_neighbours(frozenset(os.listdir(SHARED_MEMORY)) - before) == frozenset()


def test_memory_that_has_grown_is_registered_again(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    lying(arena, np.zeros(GROWTH_BYTES, np.uint8))
    np.testing.assert_array_equal(doubled(client, lying(arena)), X * 2)
    assert received(bench) < 200


def test_memory_that_grows_and_grows_leaves_no_more_than_two_regions(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    for _ in range(5):
        lying(arena, np.zeros(arena.size_bytes, np.uint8))
        np.testing.assert_array_equal(doubled(client, lying(arena)), X * 2)
    assert received(bench) < 1000, "none was sent"
    (mine,) = bench.server._servicer.memory._regions.values()
    assert len(mine) == 2
    assert max(region.segment.nbytes for region in mine.values()) == arena.size_bytes


def test_a_teacher_that_does_not_answer_is_waited_for_once(
    bench: Bench, arena: LentArena, client: SameHostClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    def hang(region: str, key: str, nbytes: int, timeout_s: float) -> None:
        waits_s.append(timeout_s)
        raise DeadlineExceeded("no answer")

    # Nothing but that takes any of the client's time.
    clock = SimpleNamespace(monotonic=lambda: sum(waits_s))
    monkeypatch.setattr(same_host, "time", clock)
    monkeypatch.setattr(client._inner, "register_memory", hang)
    lying(arena, np.zeros(GROWTH_BYTES, np.uint8))
    with pytest.raises(DeadlineExceeded):
        client.infer(Request({"x": lying(arena)}), 2.0)
    assert waits_s == [2.0]
    assert received(bench) < 200, "nothing is sent that nobody would wait for"


def test_closing_takes_leave_of_every_region(
    bench: Bench, arena: LentArena, client: SameHostClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_host, "_GOODBYE_S", WAIT_S)  # on a busy machine, too
    lying(arena, np.zeros(GROWTH_BYTES, np.uint8))
    doubled(client, lying(arena))
    regions = bench.server._servicer.memory._regions
    assert [len(mine) for mine in regions.values()] == [2]
    client.close()
    assert not regions


def test_a_region_that_the_teacher_has_let_go_costs_one_sending(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    batch = lying(arena)
    doubled(client, batch)
    bench.server._servicer.memory._regions.clear()
    np.testing.assert_array_equal(doubled(client, batch), X * 2)
    sent = received(bench)
    assert sent > X.nbytes
    np.testing.assert_array_equal(doubled(client, batch), X * 2)
    assert received(bench) - sent < 200, "it was registered again"


def test_a_teacher_that_looks_at_other_memory_gets_the_bytes(
    bench: Bench, arena: LentArena, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(LentArena.create(1 << 20)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(LentArena, "key", other.key)
        client = open_client("", bench.address, "resnet", arena=arena)
        assert isinstance(client, SameHostClient)
        with closing(client):
            client.probe(WAIT_S)
            assert client.in_place
            np.testing.assert_array_equal(doubled(client, lying(arena)), X * 2)
            assert not client.in_place
            asked = received(bench)
            doubled(client, lying(arena))
            assert received(bench) - asked < X.nbytes + 200, "it was sent at once"
    (said,) = [r for r in caplog.records if "batches travel from now on" in r.message]
    assert said.levelno == logging.WARNING


def test_what_failed_in_the_model_is_not_tried_again(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    doubled(client, lying(arena))
    asked = []

    def fail() -> None:
        asked.append(1)
        raise RetryableError("the predictor was restarted")

    bench.labeller.before = fail
    with pytest.raises(RetryableError, match="restarted"):
        doubled(client, lying(arena))
    assert len(asked) == 1
    assert client.in_place


def test_what_is_wrong_with_a_batch_is_said_and_does_not_end_the_lane(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    for _ in range(2):
        for _ in range(3):
            with pytest.raises(RequestRefused, match="shape"):
                doubled(client, lying(arena, array(3, 5)))
        assert client.in_place
        doubled(client, lying(arena))  # from here on it is known to work


@pytest.mark.parametrize("dtype", ["c8", "S3", "O"])
def test_what_has_no_place_in_the_protocol_is_as_ever(client: SameHostClient, dtype: str) -> None:
    with pytest.raises(RequestRefused):
        doubled(client, np.zeros((3, 4), dtype))
    assert client.in_place


def test_a_full_teacher_is_not_asked_twice(
    bench: Bench, arena: LentArena, client: SameHostClient
) -> None:
    asked = []

    def full() -> None:
        asked.append(1)
        raise RateLimited("full")

    bench.labeller.before = full
    with pytest.raises(RateLimited):
        doubled(client, lying(arena))
    assert len(asked) == 1


def test_a_server_that_knows_no_shared_memory_gets_the_bytes(arena: LentArena) -> None:
    teacher = ScriptedTeacher()
    client = open_client("", teacher.address, "m", arena=arena)
    assert isinstance(client, SameHostClient)
    try:
        client.probe(WAIT_S)
        assert not client.in_place
        sent = client.infer(Request({"x": lying(arena)}), WAIT_S)
        plain = client.infer(Request({"x": X}), WAIT_S)
        np.testing.assert_array_equal(sent.outputs["logits"], plain.outputs["logits"])
    finally:
        client.close()
        teacher.stop()


def test_a_teacher_that_was_stopped_labels_no_other_batch(arena: LentArena, tmp_path: Path) -> None:
    go = tmp_path / "go"
    process = start(python_command("teacher", "edl.tests.teacher.held_teacher", str(go)))
    try:
        port = process.expect(r"^port (\d+)$", WAIT_S)[1]
        client = OipGrpcClient(f"127.0.0.1:{port}", "resnet")
        client.register_memory("r", arena.key, arena.size_bytes, WAIT_S)
        record = arena.put([X])
        lent = arena.lent(to_bytes(arena.get(record.arrays[0])))
        assert lent is not None
        place = Place("r", lent[0], X.nbytes, lent[1])
        with ThreadPoolExecutor(1) as thread:
            late = thread.submit(client.infer, Request({"x": X}), WAIT_S, {"x": place})
            process.expect("^held$", WAIT_S)
            os.kill(process.pid, signal.SIGSTOP)
            arena.free(record.offset)
            arena.put([X + 1000])
            go.touch()
            os.kill(process.pid, signal.SIGCONT)
            with pytest.raises(RetryableError, match="is not this request's any more"):
                late.result(WAIT_S)
        client.close()
    finally:
        process.stop(grace_s=0.0)


def test_a_teacher_that_is_killed_is_lost_and_nothing_stays(
    arena: LentArena, tmp_path: Path
) -> None:
    process = start(
        python_command("teacher", "edl.tests.teacher.held_teacher", str(tmp_path / "x"))
    )
    try:
        port = process.expect(r"^port (\d+)$", WAIT_S)[1]
        client = open_client("", f"127.0.0.1:{port}", "resnet", arena=arena)
        client.probe(WAIT_S)
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(client.infer, Request({"x": lying(arena)}), WAIT_S)
            process.expect("^held$", WAIT_S)
            process.kill()
            with pytest.raises(TeacherLost):
                asked.result(WAIT_S)
        client.close()
    finally:
        process.stop(grace_s=0.0)
