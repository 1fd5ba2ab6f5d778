"""Plans of chaos by their seed, and what a student of a chaos run writes."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.mesh.chaos import samples
from edl.mesh.chaos.faults import BY_NAME, KINDS, Fault, Whom
from edl.mesh.chaos.plan import FIRST_S, Stage, make_plan
from edl.mesh.chaos.settings import ChaosSettings
from edl.mesh.chaos.student import MOST_ROWS, Part, Source, pss_bytes, record
from edl.mesh.chaos.trace import RECORD, Figures, latest_figures, read_figures, read_samples

seeds = st.integers(0, 1 << 32)


def burden_at(plan: Sequence[Fault], at_s: float) -> int:
    """How many of teachers, manager and Redis are struck, or not settled yet, at a moment."""
    return sum(
        fault.at_s <= at_s < fault.over_s
        and BY_NAME[fault.kind].whom in (Whom.TEACHER, Whom.CONTROL)
        for fault in plan
    )


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    students = draw(st.integers(1, 3))
    teachers = students + draw(st.integers(1, 4))
    return Stage(
        seconds=draw(st.floats(10, 300)),
        teachers=tuple(f"t{number}" for number in range(teachers)),
        guests=tuple(f"g{number}" for number in range(draw(st.integers(0, 2)))),
        students=tuple(f"s{number}" for number in range(students)),
        ttl_s=draw(st.floats(0.5, 6)),
        deceive=draw(st.booleans()),
    )


@given(seeds, stages())
def test_faults_come_in_order_within_the_time_and_leave_a_healthy_teacher_each(
    seed: int, stage: Stage
) -> None:
    plan = make_plan(seed, stage)
    assert plan == make_plan(seed, stage)
    assert [fault.number for fault in plan] == list(range(1, len(plan) + 1))
    assert all(a.at_s < b.at_s for a, b in pairwise(plan))
    assert all(FIRST_S <= fault.at_s < stage.seconds for fault in plan)
    for target in {fault.target for fault in plan}:
        own = [fault for fault in plan if fault.target == target]
        assert all(a.rested_s <= b.at_s for a, b in pairwise(own))
    assert all(burden_at(plan, fault.at_s) <= stage.burden for fault in plan)
    for fault in plan:
        kind = BY_NAME[fault.kind]
        assert kind.least_s - 0.011 <= fault.lasts_s - stage.ttl_s * kind.outlives_ttl
        assert not kind.outlives_ttl or fault.lasts_s > stage.ttl_s


def test_engines_die_also_while_the_manager_or_redis_are_away() -> None:
    stage = Stage(600.0, ("t1", "t2", "t3", "t4"), ("g1",), ("s1", "s2"), 2.0)
    plan = make_plan(1, stage)
    assert plan != make_plan(2, stage)
    away = [fault for fault in plan if BY_NAME[fault.kind].whom is Whom.CONTROL]
    deaths = [fault.at_s for fault in plan if BY_NAME[fault.kind].whom is Whom.STUDENT]
    assert any(one.at_s < at_s < one.at_s + one.lasts_s for one in away for at_s in deaths)


@given(seeds, st.booleans())
def test_about_one_fault_in_two_seconds_and_every_kind_again_and_again(
    seed: int, deceive: bool
) -> None:
    """Lies that nobody could find come only where they are asked for."""
    teachers, guests, students = ("t1", "t2", "t3", "t4"), ("g1", "g2"), ("s1", "s2")
    plan = make_plan(seed, Stage(300.0, teachers, guests, students, 2.0, deceive))
    assert 1.3 < 300.0 / len(plan) < 2.7
    deaths = [fault for fault in plan if fault.kind == "kill-engine"]
    assert all(fault.target == "s1" for fault in deaths if fault.at_s > 100.0), "s2 is to grow old"
    counts = Counter(fault.kind for fault in plan)
    for kind in KINDS:
        if kind.deceives:
            assert (counts[kind.name] > 0) is deceive
        else:
            assert counts[kind.name] >= 2, counts


def test_ids_go_on_from_epoch_to_epoch_in_batches_of_many_sizes() -> None:
    source = Source()
    batches = [batch for _ in range(2) for batch in source]
    ids = np.concatenate([batch["id"] for batch in batches])
    np.testing.assert_array_equal(ids, np.arange(len(ids)))
    assert len(batches) == 2 * len(source)
    assert {len(batch["id"]) for batch in batches} == set(range(1, MOST_ROWS + 1))
    np.testing.assert_array_equal(batches[7]["x"], samples.samples_of(batches[7]["id"]))


def test_samples_and_labels_are_exact_all_different_and_told_by_their_digest() -> None:
    ids = np.arange(5000, dtype=np.uint64)
    x = samples.samples_of(ids)
    labels = samples.labels_of(x)
    exact = x.astype(np.float64).mean(axis=1)[:, None] + x[:, : samples.CLASSES]
    np.testing.assert_array_equal(labels, exact)
    assert len(np.unique(x, axis=0)) == len(np.unique(labels, axis=0)) == len(ids)
    # However a teacher cuts a batch.
    np.testing.assert_array_equal(samples.labels_of(x[17:18]), labels[17:18])
    function, _, _ = samples.teacher()
    np.testing.assert_array_equal(function({"x": x[:4]})["soft"], labels[:4])
    right = samples.digests_of(x, labels)
    np.testing.assert_array_equal(right, samples.expected_digests(ids))
    for changed in (x, labels):  # in one byte
        changed[1, -1] += 1
        assert np.flatnonzero(samples.digests_of(x, labels) != right).tolist() == [1]
        changed[1, -1] -= 1


def test_records_are_read_as_they_were_written_but_for_what_a_kill_cut_short(
    tmp_path: Path,
) -> None:
    written = io.BytesIO()
    batch = next(iter(Source()))
    batch["soft"] = samples.labels_of(batch["x"])
    record(batch, 1.5, written)
    record(batch, 2.5, written)
    file = tmp_path / "samples"
    file.write_bytes(written.getvalue() + bytes(RECORD.itemsize - 1))
    rows = read_samples(file)
    assert rows["at_s"].tolist() == [1.5, 2.5]
    assert rows["id"].tolist() == [0, 0]
    np.testing.assert_array_equal(rows["digest"][:1], samples.expected_digests(batch["id"]))
    told = Figures(1.0, ("t1", "t2"), 7, 8, 9, "0 of 2 teachers live", 10, 11)
    file.write_text(told.to_line() * 2 + told.to_line()[:20])
    assert read_figures(file) == (told, told)
    assert latest_figures(file) == told
    assert told.later(-1.0).at_s == 0.0
    no = tmp_path / "no"
    assert (len(read_samples(no)), latest_figures(no), read_figures(no)) == (0, None, ())
    part = Part("s1", "chaos", "redis://127.0.0.1:1", 5.0, "trace", shared_memory=False)
    assert Part.from_json(part.to_json()) == part


def test_memory_is_measured_and_a_run_that_is_too_short_is_refused() -> None:
    assert 1 << 20 < pss_bytes(os.getpid()) < 8 << 30
    with pytest.raises(UsageError, match="too short for chaos"):
        ChaosSettings(seed=1, seconds=5.0)
