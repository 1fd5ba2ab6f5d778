"""What the training loop gets while there is no teacher: as the policy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.errors import NoTeacherAvailable, UsageError
from edl.tests.distill_reader.test_reader import Batches, check_epoch, reader_of, until
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of

NOBODY = "127.0.0.1:9"


def test_hard_only_goes_on_without_soft_labels_and_counts() -> None:
    source = Batches(10)
    with DistilReader(
        source, service="s", teachers=[NOBODY], no_teacher="hard_only", no_teacher_grace_s=0.2
    ) as reader:
        for _ in range(2):
            batches = list(reader)
            assert [int(ids[0]) for _, ids, _ in batches] == list(range(10))
            for x, ids, soft in batches:
                assert soft is None
                np.testing.assert_array_equal(x, source.at(int(ids[0])))
        assert reader.stats.unlabelled == 20


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
    with DistilReader(
        source,
        service="s",
        teachers=[NOBODY],
        no_teacher="hard_only",
        no_teacher_grace_s=0.0,
        **options,
    ) as reader:
        (batch,) = reader
    assert list(batch) == ["x", *names]
    assert all(batch[name] is None for name in names)


def test_labels_come_again_with_a_teacher() -> None:
    teacher = ScriptedTeacher()
    source = Batches(400)
    seen = []
    try:
        with reader_of(
            source, teacher, no_teacher="hard_only", no_teacher_grace_s=3.0, upper_bytes=1
        ) as reader:
            until(lambda: bool(reader.stats.teachers))
            for x, ids, soft in reader:
                if ids[0] == 20:
                    port = int(teacher.address.rpartition(":")[2])
                    teacher.stop()
                if ids[0] == 50:
                    teacher = ScriptedTeacher(port=port)
                    until(lambda: bool(reader.stats.teachers))
                seen.append(soft is not None)
                if soft is not None:
                    np.testing.assert_array_equal(soft, logits_of(x))
            assert reader.stats.unlabelled == seen.count(False)
    finally:
        teacher.stop()
    assert all(seen[:20])
    assert not any(seen[30:50])
    assert all(seen[100:])
    assert len(seen) == 400


def test_fail_says_so_soon() -> None:
    with (
        DistilReader(
            Batches(3), service="s", teachers=[NOBODY], no_teacher="fail", no_teacher_grace_s=0.2
        ) as reader,
        pytest.raises(NoTeacherAvailable, match=r"no teacher of service 's' for 0.2 s: 0 of 1"),
    ):
        list(reader)


def test_nobody_fails_while_there_is_one() -> None:
    teacher = ScriptedTeacher()
    source = Batches(20)
    try:
        with reader_of(source, teacher, no_teacher="fail", no_teacher_grace_s=5.0) as reader:
            check_epoch(source, list(reader))
    finally:
        teacher.stop()


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="no_teacher='give_up'"):
        DistilReader([], service="s", teachers=[NOBODY], no_teacher="give_up")  # type: ignore[arg-type]
