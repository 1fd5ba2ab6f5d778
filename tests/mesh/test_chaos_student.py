"""What a student of a chaos run writes, and that its samples are what their ids say."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

from edl.errors import UsageError
from edl.mesh.chaos import samples
from edl.mesh.chaos.settings import ChaosSettings
from edl.mesh.chaos.student import EPOCH_BATCHES, MOST_ROWS, Part, Source, pss_bytes, record
from edl.mesh.chaos.trace import RECORD, Figures, latest_figures, read_figures, read_samples


def test_ids_go_on_from_epoch_to_epoch_in_batches_of_many_sizes() -> None:
    source = Source()
    batches = [batch for _ in range(2) for batch in source]
    ids = np.concatenate([batch["id"] for batch in batches])
    np.testing.assert_array_equal(ids, np.arange(len(ids)))
    assert len(batches) == 2 * EPOCH_BATCHES == 2 * len(source)
    assert {len(batch["id"]) for batch in batches} == set(range(1, MOST_ROWS + 1))
    np.testing.assert_array_equal(batches[7]["x"], samples.samples_of(batches[7]["id"]))


def test_samples_and_labels_are_exact_and_all_different() -> None:
    ids = np.arange(5000, dtype=np.uint64)
    x = samples.samples_of(ids)
    labels = samples.labels_of(x)
    exact = x.astype(np.float64).mean(axis=1)[:, None] + x[:, : samples.CLASSES]
    np.testing.assert_array_equal(labels, exact)
    assert len(np.unique(x, axis=0)) == len(np.unique(labels, axis=0)) == len(ids)
    # However a teacher cuts a batch.
    np.testing.assert_array_equal(samples.labels_of(x[17:18]), labels[17:18])


def test_a_digest_tells_of_every_byte_of_sample_and_label() -> None:
    ids = np.arange(3, dtype=np.uint64)
    x = samples.samples_of(ids)
    labels = samples.labels_of(x)
    right = samples.digests_of(x, labels)
    np.testing.assert_array_equal(right, samples.expected_digests(ids))
    for changed in (x, labels):
        changed[1, -1] += 1
        assert (samples.digests_of(x, labels) != right).tolist() == [False, True, False]
        changed[1, -1] -= 1


def test_the_teachers_model_is_the_function_that_everyone_knows() -> None:
    function, inputs, outputs = samples.teacher()
    x = samples.samples_of(np.arange(4, dtype=np.uint64))
    np.testing.assert_array_equal(function({"x": x})["soft"], samples.labels_of(x))
    assert inputs == ["x:FP32:-1,1024"]
    assert outputs == ["soft:FP32:-1,256"]


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
    assert len(read_samples(tmp_path / "nothing")) == 0


def test_figures_are_read_as_they_were_written_but_for_a_part_of_a_line(tmp_path: Path) -> None:
    told = Figures(1.0, ("t1", "t2"), 7, 8, 9, "0 of 2 teachers live", 10, 11)
    file = tmp_path / "figures"
    file.write_text(told.to_line() * 2 + told.to_line()[:20])
    assert read_figures(file) == (told, told)
    assert latest_figures(file) == told
    assert latest_figures(tmp_path / "nothing") is None
    assert told.later(-1.0).at_s == 0.0
    assert read_figures(tmp_path / "nothing") == ()


def test_a_part_goes_over_a_command_line() -> None:
    part = Part("s1", "chaos", "redis://127.0.0.1:1", 5.0, "trace", shared_memory=False)
    assert Part.from_json(part.to_json()) == part


def test_memory_of_a_process_is_measured() -> None:
    assert 1 << 20 < pss_bytes(os.getpid()) < 8 << 30
    with pytest.raises(OSError):
        pss_bytes(2**22 + 1)


def test_a_run_that_is_too_short_is_refused() -> None:
    with pytest.raises(UsageError, match=r"too short for chaos: give --minutes at least 0\.17"):
        ChaosSettings(seed=1, seconds=5.0)
