"""The timeline of a reader, as Perfetto would read it: whole at any moment, bounded, and true."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl.distill_reader import DistilReader
from edl.distill_reader.trace_file import older
from edl.errors import UsageError
from edl.supervise import python_command, start
from edl.tests.distill_reader.test_reader import Batches, check_epoch, reader_of, until
from edl.tests.distill_reader.traces import check, events_of, lives, slices, track_names
from edl.tests.scripted_teacher import ScriptedTeacher, label


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def test_a_run_from_source_to_step(teacher: ScriptedTeacher, path: Path) -> None:
    def work(request: Any) -> Any:
        time.sleep(0.004)  # what is drawn
        return label(request)

    teacher.behaviour = work
    source, step_s = Batches(20), 0.002
    began = time.monotonic()
    with reader_of(source, teacher, trace=path) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            time.sleep(step_s)
    check_epoch(source, batches)
    events = events_of(path)
    check(events)
    for event in events:
        if event["ph"] != "M":
            assert began * 1e6 <= event["ts"] <= time.monotonic() * 1e6

    pulls = slices(events, "source: pulls")
    assert [pull["name"] for pull in pulls] == [f"pull {number}" for number in range(20)]
    requests = [e for e in events if e.get("args", {}).get("request") is not None]
    assert sorted(e["name"] for e in requests) == sorted(f"batch {n}" for n in range(20))
    assert all(e["dur"] >= 4000 for e in requests)
    lanes = {track_names(events)[e["pid"], e["tid"]] for e in requests}
    assert lanes == {f"teachers: {teacher.address}", f"teachers: {teacher.address} (2)"}
    loop = slices(events, "student: training loop")
    steps = [e for e in loop if e["name"] == "step"]
    assert len(steps) == 19, "the last one ends outside of the loop"
    assert all(e["dur"] >= step_s * 1e6 for e in steps)
    assert "wait for 0" in [e["name"] for e in loop]
    volume = [e["args"]["value"] for e in events if e["name"] == "volume (bytes)"]
    assert max(volume) > 0
    assert f"{teacher.address} joined" in [e["name"] for e in events]
    assert slices(events, "student: state"), "in which it was how long"
    assert events[-1]["name"] == "the end"

    whole, ready = lives(events), lives(events, "ready")
    assert whole.keys() == ready.keys() == set(range(20))
    for pull in pulls:
        began_us, ended_us = whole[int(pull["name"].removeprefix("pull "))]
        assert began_us == pytest.approx(pull["ts"] + pull["dur"], abs=1.0)
        assert ended_us - began_us >= 4000, "no label is there sooner"
    for number, (ready_us, taken_us) in ready.items():
        assert whole[number][0] < ready_us <= taken_us == whole[number][1]
    wants = [e for e in events if e["ph"] == "i" and e["name"].startswith("want ")]
    assert wants
    assert all(want["args"]["reason"] for want in wants)


def test_pauses_are_drawn_with_their_reason(teacher: ScriptedTeacher, path: Path) -> None:
    source = Batches(40)
    with reader_of(source, teacher, trace=path, upper_bytes=1000) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            until(lambda: reader.stats.blocked_s > 0)
        check_epoch(source, batches)
    events = events_of(path)
    check(events)
    pauses = slices(events, "source: pauses")
    assert pauses
    for pause in pauses:
        assert "bytes wait for the student, above ut = 1000" in pause["args"]["reason"]
    pulls = slices(events, "source: pulls")
    assert any(p["ts"] > pauses[0]["ts"] + pauses[0]["dur"] for p in pulls), "it went on"


def test_a_late_request_is_drawn_with_its_hedge(teacher: ScriptedTeacher, path: Path) -> None:
    """One teacher falls silent: what it has is asked of the other, and it is ejected."""
    silent, labels = ScriptedTeacher(), threading.Event()

    def falls_silent(request: Any) -> Any:
        if silent.requests > 5:
            labels.wait(20)
        return label(request)

    silent.behaviour = falls_silent
    silent.is_ready = lambda: silent.requests <= 5 or labels.wait(20)  # not let in before
    source, batches = Batches(2000), []
    try:
        with reader_of(source, teacher, silent, trace=path, upper_bytes=4000) as reader:
            for batch in reader:
                batches.append(batch)
                time.sleep(0.002)
                if reader.stats.ejected:
                    break
            assert reader.stats.ejected_for == ("silent",)
            assert reader.stats.hedges > 0
            labels.set()
            until(lambda: reader.stats.ejected == (), 20.0)
            until(lambda: "let in again" in path.read_text())
    finally:
        labels.set()
        silent.stop()
    events = events_of(path)
    check(events)
    happened = [event for event in events if event["ph"] == "i"]
    hedges = [event for event in happened if event["name"].startswith("hedge of request")]
    assert hedges
    names = track_names(events)
    assert {names[e["pid"], e["tid"]] for e in hedges} == {"teachers: hedges"}
    drawn = {e["args"]["request"] for e in events if e["ph"] == "X" and "request" in e["args"]}
    assert {e["args"]["request"] for e in hedges} <= drawn
    (ejected,) = [e for e in happened if "ejected: it says nothing" in e["name"]]
    assert ejected["args"] == {"cause": "silent"}
    assert names[ejected["pid"], ejected["tid"]] == f"teachers: {silent.address}"


def test_what_an_epoch_left_behind_is_drawn_too(teacher: ScriptedTeacher, path: Path) -> None:
    with reader_of(Batches(50), teacher, trace=path) as reader:
        for _ in reader:
            until(lambda: reader.stats.yielded > 2)
            break
        list(reader)
    events = events_of(path)
    check(events)
    outcomes = [e["args"]["outcome"] for e in events if (e["ph"], e["name"]) == ("b", "batch")]
    assert outcomes.count("delivered") == 51
    assert set(outcomes) == {"delivered", "left"}


def test_an_interrupted_training_leaves_a_whole_trace(teacher: ScriptedTeacher, path: Path) -> None:
    """Ctrl-C, with the reader in a `with`."""
    program = start(
        python_command(
            "trainer", "edl.tests.distill_reader.traced_program", teacher.address, str(path)
        )
    )
    try:
        program.expect("^trains$", 30.0)
        program.send_signal(signal.SIGINT)
        program.wait(10.0)
    finally:
        program.stop(0.0)
    events = events_of(path)
    check(events)
    assert events[-1]["name"] == "the end"
    assert slices(events, "student: training loop")


def test_a_failure_is_drawn_with_what_was_said(path: Path) -> None:
    asked = threading.Event()

    def lie(request: Any) -> Any:
        asked.set()
        return {"other": label(request)["logits"]}

    def there_second() -> bool:
        return asked.wait(30.0)

    liar, good = ScriptedTeacher(lie), ScriptedTeacher()
    good.is_ready = there_second
    try:
        with reader_of(Batches(10), liar, good, fetches=["logits"], trace=path) as reader:
            list(reader)
    finally:
        liar.stop()
        good.stop()
    failed = [e for e in events_of(path) if e["name"].startswith("failed: batch")]
    assert failed
    assert any("logits" in e["args"]["error"] for e in failed)


def test_what_a_killed_engine_leaves_opens_and_the_next_one_goes_on_with_it(
    teacher: ScriptedTeacher, path: Path
) -> None:
    source, batches = Batches(100), []
    with reader_of(source, teacher, trace=path, upper_bytes=1000) as reader:
        for batch in reader:
            batches.append(batch)
            if len(batches) == 20:
                until(lambda: '"wait for 0"' in path.read_text())
                os.kill(reader.engine_pid, signal.SIGKILL)
                until(lambda: reader.stats.engine_restarts == 1)
        check_epoch(source, batches)
        until(lambda: '"pull 99"' in path.read_text())
        assert events_of(path, ended=False), "it can be looked at while it grows"
    events = events_of(path)
    check(events)
    pulls = [event["name"] for event in slices(events, "source: pulls")]
    assert len(pulls) == len(set(pulls)), "none is drawn twice"
    assert sum(event["name"] == "process_name" for event in events) == 2 * 4
    assert {*range(50, 100)} <= lives(events).keys(), "those of the second engine"


def test_a_trace_is_bounded_by_two_halves(teacher: ScriptedTeacher, path: Path) -> None:
    limit = 64 << 10
    with reader_of(Batches(1500), teacher, trace=path, trace_max_bytes=limit) as reader:
        list(reader)
    halves = [events_of(older(path)), events_of(path)]
    for events in halves:
        check(events)
        assert track_names(events), "each half has the names of its tracks"
    slack = 64 << 10  # what is written at once
    assert path.stat().st_size + older(path).stat().st_size <= limit + 2 * slack
    assert halves[1][-1]["name"] == "the end", "the latest are always there"


def test_no_trace_where_nobody_asked_for_one(teacher: ScriptedTeacher, tmp_path: Path) -> None:
    with reader_of(Batches(3), teacher) as reader:
        list(reader)
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    def reader(**options: Any) -> DistilReader:
        return DistilReader(Batches(1), service="s", teachers=["127.0.0.1:9"], **options)

    before = set(threading.enumerate())
    with pytest.raises(UsageError, match=r"the trace cannot be written.*nowhere"):
        reader(trace=tmp_path / "nowhere" / "run.json")
    with pytest.raises(UsageError, match="trace_max_bytes is at least"):
        reader(trace=tmp_path / "run.json", trace_max_bytes=10)
    assert not set(threading.enumerate()) - before
