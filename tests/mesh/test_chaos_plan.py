"""Fault plans, the synthetic samples, and the files that a student of a chaos run writes."""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.mesh.chaos import synthetic_samples
from edl.mesh.chaos.fault_plan import (
    FAULT_KINDS,
    FIRST_FAULT_S,
    KIND_BY_NAME,
    ChaosSettings,
    Fault,
    FaultTarget,
    make_plan,
)
from edl.mesh.chaos.run_trace import SAMPLE_RECORD, StudentStats, read_records, read_stats
from edl.mesh.chaos.student import MAX_ROWS, SampleSource, StudentConfig, pss_bytes, write_records
from edl.runtime.errors import UsageError

seeds = st.integers(0, 1 << 32)


def faulty_at(plan: Sequence[Fault], at_s: float) -> int:
    """Number of teachers and control-plane processes whose faults have not settled at a time."""
    return sum(
        fault.at_s <= at_s < fault.settled_s
        and KIND_BY_NAME[fault.kind].target in (FaultTarget.TEACHER, FaultTarget.CONTROL_PLANE)
        for fault in plan
    )


@st.composite
def chaos_settings(draw: st.DrawFn) -> ChaosSettings:
    students = draw(st.integers(1, 3))
    teachers = students + draw(st.integers(1, 4))
    return ChaosSettings(
        seed=draw(seeds),
        seconds=draw(st.floats(10, 300)),
        teachers=teachers,
        guests=draw(st.integers(0, 2)),
        students=students,
        ttl_s=draw(st.floats(0.5, 6)),
        deceive=draw(st.booleans()),
    )


@given(chaos_settings())
def test_faults_come_in_order_within_the_time_and_leave_a_healthy_teacher_each(
    settings: ChaosSettings,
) -> None:
    plan = make_plan(settings)
    assert plan == make_plan(settings)
    assert [fault.number for fault in plan] == list(range(1, len(plan) + 1))
    assert all(a.at_s < b.at_s for a, b in pairwise(plan))
    assert all(FIRST_FAULT_S <= fault.at_s < settings.seconds for fault in plan)
    for target in {fault.target for fault in plan}:
        own = [fault for fault in plan if fault.target == target]
        assert all(a.target_free_s <= b.at_s for a, b in pairwise(own))
    assert all(faulty_at(plan, fault.at_s) <= settings.max_concurrent_faults for fault in plan)
    for fault in plan:
        kind = KIND_BY_NAME[fault.kind]
        duration_s = fault.lasts_s - settings.ttl_s * kind.outlives_ttl
        assert kind.min_duration_s - 0.011 <= duration_s
        assert not kind.outlives_ttl or fault.lasts_s > settings.ttl_s


def test_engines_die_also_while_the_manager_or_redis_are_away() -> None:
    plan = make_plan(ChaosSettings(seed=1, seconds=600.0, guests=1))
    assert plan != make_plan(ChaosSettings(seed=2, seconds=600.0, guests=1))
    targets = [(fault, KIND_BY_NAME[fault.kind].target) for fault in plan]
    away = [fault for fault, target in targets if target is FaultTarget.CONTROL_PLANE]
    deaths = [fault.at_s for fault, target in targets if target is FaultTarget.STUDENT]
    assert any(one.at_s < at_s < one.at_s + one.lasts_s for one in away for at_s in deaths)


@given(seeds, st.booleans())
def test_about_one_fault_in_two_seconds_and_every_kind_again_and_again(
    seed: int, deceive: bool
) -> None:
    """Faults that need a comparison come only with `deceive`."""
    plan = make_plan(ChaosSettings(seed=seed, seconds=300.0, deceive=deceive))
    assert 1.3 < 300.0 / len(plan) < 2.7
    deaths = [fault for fault in plan if fault.kind == "kill-engine"]
    assert all(fault.target == "student-1" for fault in deaths if fault.at_s > 100.0)
    counts = Counter(fault.kind for fault in plan)
    for kind in FAULT_KINDS:
        if kind.needs_comparison:
            assert (counts[kind.name] > 0) is deceive
        else:
            assert counts[kind.name] >= 2, counts


def test_ids_go_on_from_epoch_to_epoch_in_batches_of_many_sizes() -> None:
    source = SampleSource()
    batches = [batch for _ in range(2) for batch in source]
    ids = np.concatenate([batch["id"] for batch in batches])
    np.testing.assert_array_equal(ids, np.arange(len(ids)))
    assert len(batches) == 2 * len(source)
    assert {len(batch["id"]) for batch in batches} == set(range(1, MAX_ROWS + 1))
    np.testing.assert_array_equal(batches[7]["x"], synthetic_samples.samples_of(batches[7]["id"]))


def test_samples_and_labels_are_exact_all_different_and_told_by_their_digest() -> None:
    ids = np.arange(5000, dtype=np.uint64)
    x = synthetic_samples.samples_of(ids)
    labels = synthetic_samples.labels_of(x)
    exact = x.astype(np.float64).mean(axis=1)[:, None] + x[:, : synthetic_samples.CLASSES]
    np.testing.assert_array_equal(labels, exact)
    assert len(np.unique(x, axis=0)) == len(np.unique(labels, axis=0)) == len(ids)
    # However a teacher cuts a batch.
    np.testing.assert_array_equal(synthetic_samples.labels_of(x[17:18]), labels[17:18])
    function, _, _ = synthetic_samples.teacher()
    np.testing.assert_array_equal(function({"x": x[:4]})["soft"], labels[:4])
    right = synthetic_samples.digests_of(x, labels)
    np.testing.assert_array_equal(right, synthetic_samples.expected_digests(ids))
    for changed in (x, labels):  # in one byte
        changed[1, -1] += 1
        assert np.flatnonzero(synthetic_samples.digests_of(x, labels) != right).tolist() == [1]
        changed[1, -1] -= 1


def test_records_are_read_as_they_were_written_but_for_what_a_kill_cut_short(
    tmp_path: Path,
) -> None:
    written = io.BytesIO()
    batch = next(iter(SampleSource()))
    batch["soft"] = synthetic_samples.labels_of(batch["x"])
    write_records(batch, 1.5, written)
    write_records(batch, 2.5, written)
    file = tmp_path / "samples"
    file.write_bytes(written.getvalue() + bytes(SAMPLE_RECORD.itemsize - 1))
    rows = read_records(file, SAMPLE_RECORD)
    assert rows["at_s"].tolist() == [1.5, 2.5]
    assert rows["id"].tolist() == [0, 0]
    np.testing.assert_array_equal(
        rows["digest"][:1], synthetic_samples.expected_digests(batch["id"])
    )
    told = StudentStats(1.0, ("t1", "t2"), 7, 8, "0 of 2 teachers live", 10, 11)
    file.write_text(told.to_line() * 2 + told.to_line()[:20])
    assert read_stats(file) == (told, told)
    no = tmp_path / "no"
    assert (len(read_records(no, SAMPLE_RECORD)), read_stats(no)) == (0, ())
    part = StudentConfig("s1", "redis://127.0.0.1:1", 5.0, "trace", shared_memory=False)
    assert StudentConfig.from_json(part.to_json()) == part


def test_memory_is_measured_and_a_run_that_is_too_short_is_refused() -> None:
    assert 1 << 20 < pss_bytes(os.getpid()) < 8 << 30
    for seconds in (5.0, math.nan, math.inf):  # a plan for ever would need all memory
        with pytest.raises(UsageError, match="is a finite number"):
            ChaosSettings(seed=1, seconds=seconds)
