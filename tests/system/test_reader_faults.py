"""Readers over real teachers that die, stop, leave or are slow: no batch is lost or mislabelled."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.coordinator import fetch_status
from edl.distill_reader import DistilReader
from edl.distill_reader.options import Limits, Timeouts
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.credentials import ServerSecurity
from edl.tests.distill_reader import readers
from edl.tests.faults import FaultProxy
from edl.tests.proto.security.authority import write_secret
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.system.conftest import (
    BATCH_BYTES,
    FOR_EVER,
    ROWS,
    SPEC,
    Batches,
    Service,
    keeps_what_it_gets,
    taken_until,
)
from edl.tests.system.coordinator_process import (
    SERVICE,
    Coordinator,
    Members,
    edl_output,
    ready,
    serve,
)
from edl.tests.system.slow_network import FACTOR_VARIABLE
from edl.tests.system.teacher_process import serving
from edl.tests.waiting import DEADLINE_S, wait_until

#: A batch takes a tenth of a second. Set it before teachers start: they measure their speed then.
PACE_S = 0.1 / ROWS
SetPace = Callable[[float], None]


def test_teachers_leave_stop_and_die_and_so_do_a_predictor_and_the_engine(
    service: Service, set_pace: SetPace
) -> None:
    set_pace(PACE_S / 4)
    killed, suspended, drained = service.add("killed", "suspended", "drained")
    source = Batches()
    with service.reader(source, teachers_min=3, upper_bytes=10_000, canaries=None) as reader:
        iterator = iter(reader)

        batches = taken_until(iterator, lambda: drained in dict(reader.stats.in_flight))
        service.drain(drained)
        batches += taken_until(iterator, lambda: not service.teachers[drained].alive)
        assert service.teachers[drained].returncode == 0
        assert reader.stats.resends == 0

        batches += taken_until(iterator, lambda: suspended in reader.stats.teachers)
        batches += keeps_what_it_gets(service.teachers[suspended], suspended, reader, iterator)
        batches += taken_until(iterator, lambda: reader.stats.resends + reader.stats.hedges > 0)
        batches += taken_until(iterator, lambda: suspended not in reader.stats.teachers)
        service.resume(suspended)
        batches += taken_until(iterator, lambda: suspended in reader.stats.teachers)

        before = reader.stats.resends
        batches += keeps_what_it_gets(service.teachers[killed], killed, reader, iterator)
        service.kill(killed)
        batches += taken_until(iterator, lambda: killed not in reader.stats.teachers)
        assert reader.stats.resends + reader.stats.hedges > before
        assert reader.stats.resends - before <= reader.config.limits.window_max

        before = reader.stats.resends
        (predictor,) = psutil.Process(service.teachers[suspended].pid).children()
        predictor.kill()
        batches += taken_until(iterator, lambda: reader.stats.resends > before)
        os.kill(reader.engine_pid, signal.SIGKILL)
        batches += taken_until(iterator, lambda: reader.stats.engine_restarts == 1)
        batches += source.rest(iterator)
    assert service.teachers[suspended].alive
    source.check(batches)


def test_resends_are_not_held_back_by_a_full_buffer(service: Service, set_pace: SetPace) -> None:
    set_pace(PACE_S)
    service.add("a", "b")
    set_pace(3.0 / ROWS)  # none is labelled before the buffer is full
    source = Batches(20)
    full = {"upper_bytes": 3 * BATCH_BYTES, "lower_bytes": 0}
    limits = Limits(window=4, window_max=4)
    with service.reader(source, teachers_min=2, limits=limits, **full) as reader:
        iterator = iter(reader)
        wait_until(lambda: reader.stats.state == "blocked" and len(reader.stats.teachers) == 2)
        yielded = reader.stats.yielded
        wait_until(lambda: any(count for _, count in reader.stats.in_flight))
        service.kill(next(name for name, count in reader.stats.in_flight if count))
        set_pace(0.0)
        wait_until(lambda: reader.stats.resends and not any(n for _, n in reader.stats.in_flight))
        assert reader.stats.state == "blocked", "nothing was taken: the buffer is still full"
        assert reader.stats.yielded == yielded, "no new batch was pulled"
        source.check(list(iterator))


@contextmanager
def looping(batches: Iterable[Any], source: Batches | None = None) -> Iterator[list[Any]]:
    """A training loop in a thread; it takes all, or until `source` ends with the `with`."""
    taken: list[Any] = []
    stream = iter(batches)  # which has no length: `extend` would make room for that of a reader
    loop = threading.Thread(target=lambda: taken.extend(stream))
    loop.start()
    try:
        yield taken
    finally:
        if source is not None:
            source.end()
        loop.join(DEADLINE_S)
    assert not loop.is_alive()


def status_of(service: Service) -> tuple[str, dict[str, Any]]:
    """What `edl status` prints, and what `edl status --json` says of the one student."""
    words = ("status", "--service", service.name)
    text = "\n".join(edl_output(*words, url=service.url))
    found = json.loads("".join(edl_output(*words, "--json", url=service.url)))["services"]
    return text, dict(*found[0]["students"])


def test_a_stopped_teacher_is_asked_past_ejected_and_let_in_again(
    service: Service, set_pace: SetPace
) -> None:
    """Its lease lasts, so it is the reader that finds out; `edl status` names it."""
    set_pace(PACE_S / 4)
    ids = service.add("a", "b", "stuck", spec=replace(SPEC, ttl_s=120.0))
    stuck = ids[-1]
    source = Batches()
    with (
        service.reader(source, teachers_min=3, teachers_max=3, upper_bytes=10_000) as reader,
        looping(reader, source) as batches,
    ):
        try:
            wait_until(lambda: all(dict(reader.stats.served).get(name) for name in ids))
            service.suspend(stuck)
            line = f"teacher {stuck} is ejected by job/0: it does not answer while others do"
            told: dict[str, Any] = {}

            def is_the_only_one() -> bool:  # another one may have been out for a moment
                text, student = status_of(service)
                told.update(student)
                out = (told["ejected"], told["ejected_for"])
                return line in text and out == ([stuck], ["silent"])

            wait_until(is_the_only_one)
            assert told["hedges"] > 0
            assert told["starved_seconds"] > 0, "it does nothing but wait for labels"
        finally:
            service.resume(stuck)
        wait_until(lambda: "ejected" not in status_of(service)[0])
        assert status_of(service)[1]["ejections"] >= 1
    source.check(batches)


def test_n_follows_the_device_time_that_teachers_report(
    service: Service, set_pace: SetPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A straggler among them is named."""
    others = service.add("a", "b")
    monkeypatch.setenv(FACTOR_VARIABLE, "20")
    (slow,) = service.add("slow")
    source = Batches()
    with (
        service.reader(source, teachers_min=3, upper_bytes=10_000) as reader,
        looping(reader, source) as batches,
    ):
        wait_until(lambda: status_of(service)[1].get("needed", 0) >= 1)
        set_pace(PACE_S / 4)
        wait_until(lambda: reader.stats.t_t_s >= PACE_S / 4)  # a sleep is never shorter
        wait_until(lambda: status_of(service)[1].get("needed", 0) >= 2)
        wait_until(lambda: f"teacher {slow} is a straggler to job/0" in status_of(service)[0])
        assert not set(others) & set(reader.stats.stragglers)
    source.check(batches)


LOCAL_MODEL = "edl.tests.teacher.functions:slow"
LOCAL_BATCH_BYTES = 4 * 8192 * 4


def large(count: int = FOR_EVER) -> Batches:
    """Batches of 128 KB, which teachers on the reader's host read in place."""
    return Batches(count, (4, 8192), lambda x: x * 2)


def copies(reader: DistilReader) -> list[Any]:
    """An epoch, copied: batches that are held would make the shared memory grow."""
    return [tuple(part.copy() for part in batch) for batch in reader]


def test_batches_are_not_sent_and_the_teacher_releases_their_memory() -> None:
    with serving("--metrics-listen", "0", model=LOCAL_MODEL) as teacher:
        server, source = psutil.Process(teacher.process.pid), large(40)

        def maps_it() -> bool:
            return any("edl-lent" in kept.path for kept in server.memory_maps())

        with DistilReader(source, service="m", teachers=[teacher.address]) as reader:
            source.check(copies(reader))
            assert maps_it()
            received = teacher.metric("edl_teacher_received_bytes_total")
            assert received < LOCAL_BATCH_BYTES, "less than one batch"
        wait_until(lambda: not maps_it())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_teacher_that_dies_or_stands_still_in_mid_request_spoils_nothing(
    how: signal.Signals,
) -> None:
    source = large()
    with serving(model=LOCAL_MODEL) as first, serving(model=LOCAL_MODEL) as second:
        options: dict[str, Any] = {"teachers": [first.address, second.address], "canaries": None}
        options |= {"upper_bytes": 10 * LOCAL_BATCH_BYTES, "timeouts": Timeouts(request_s=5.0)}
        with DistilReader(source, service="m", **options) as reader:
            iterator = iter(reader)
            batches = taken_until(iterator, lambda: first.address in dict(reader.stats.served))
            batches += keeps_what_it_gets(first.process, first.address, reader, iterator)
            first.process.send_signal(how)
            batches += taken_until(iterator, lambda: reader.stats.resends + reader.stats.hedges)
            batches += source.rest(iterator)
            if how == signal.SIGSTOP:  # its slots have long been given to other batches
                first.process.send_signal(signal.SIGCONT)
                source.check(copies(reader))
        source.check(batches)


@pytest.fixture
def brisk(stack: ExitStack) -> Coordinator:
    """It changes the desired number of teachers as soon as there is cause."""
    coordinator = ready(serve("--redis-port", 0, "--autoscale", "freeze=0.5,up-after=0.5"))
    stack.callback(coordinator.process.stop)
    return coordinator


def told_of(coordinator: Coordinator) -> tuple[pb.ServiceStatus, pb.StudentReport]:
    """What the leader says of the one service, and the last report of its student."""
    service = next(iter(fetch_status(coordinator.url, SERVICE).services), pb.ServiceStatus())
    return service, service.students[0].report if service.students else pb.StudentReport()


def test_a_student_that_its_teachers_do_not_let_in_gets_no_more_of_them(
    brisk: Coordinator, stack: ExitStack, tmp_path: Path
) -> None:
    members = Members(brisk.url, stack)
    tokens = write_secret(tmp_path / "tokens", "student another-token\n")
    for name in ("t1", "t2"):
        teacher = ScriptedTeacher(security=ServerSecurity(None, tokens))
        stack.callback(teacher.stop)
        members.teacher(name, teacher.address)
    own = write_secret(tmp_path / "token", "own-token\n")
    options: dict[str, Any] = {"coordinator": brisk.url, "token_file": own}
    reader = stack.enter_context(DistilReader(readers.Batches(50), service=SERVICE, **options))
    with looping(reader):
        wait_until(lambda: told_of(brisk)[1].cut_off)
        begun_s = told_of(brisk)[0].starved_seconds

        def has_starved_for_long() -> bool:
            service, report = told_of(brisk)
            assert service.desired_teachers <= 2, "as many as there are"
            return report.cut_off > 0 and service.starved_seconds > begun_s + 3.0

        wait_until(has_starved_for_long)
        assert "rejects this reader's credentials" in reader.stats.waiting_for
        write_secret(tokens, "student another-token\nstudent own-token\n")
    wait_until(lambda: not told_of(brisk)[1].cut_off)


def test_a_student_that_reaches_none_of_its_teachers_gets_no_more_of_them(
    brisk: Coordinator, stack: ExitStack
) -> None:
    """The path to both is gone and both are registered: the service needs no other teachers."""
    members, source = Members(brisk.url, stack), Batches(shape=(4, 3))
    proxies = list[FaultProxy]()
    for name in ("t1", "t2"):
        teacher = ScriptedTeacher(seconds=1e-6)
        stack.callback(teacher.stop)
        proxies.append(stack.enter_context(FaultProxy(teacher.address)))
        members.teacher(name, proxies[-1].address)
    options: dict[str, Any] = {"teachers_min": 2, "upper_bytes": 1000, "lower_bytes": 500}
    options |= {"shared_memory": False, "coordinator": brisk.url}
    reader = stack.enter_context(DistilReader(source, service=SERVICE, **options))
    iterator = iter(reader)
    while len(reader.stats.teachers) < 2 or reader.stats.delivered < 100:
        next(iterator)
        wait_until(lambda: reader.stats.ready)  # so that it never waits for labels
    wait_until(lambda: told_of(brisk)[0].desired_teachers == 2)
    for proxy in proxies:
        proxy.partition()
    with looping(iterator, source):
        wait_until(lambda: "unreachable since" in reader.stats.waiting_for)
        wait_until(lambda: told_of(brisk)[1].cut_off and told_of(brisk)[1].unreachable == 2)
        begun_s = told_of(brisk)[0].starved_seconds

        def has_starved_for_long() -> bool:
            service, report = told_of(brisk)
            assert report.want <= 2 + 2, "a stand-in for each"
            assert service.desired_teachers == 2
            return service.starved_seconds > begun_s + 5.0

        wait_until(has_starved_for_long)
        for proxy in proxies:
            proxy.heal()
        wait_until(lambda: not told_of(brisk)[1].cut_off)
