"""Job fingerprints: what differs, and how it is told."""

from __future__ import annotations

from typing import Any

from edl.scheduler.students.fingerprint import (
    data_order,
    differences,
    differences_in_words,
    optimizer_changes,
    since_checkpoint,
)

JOB: dict[str, Any] = {
    "seed": 0,
    "rows": 240,
    "optimizer": {"type": "SGD", "learning_rate": 0.1},
    "epochs": 5,
}


def test_each_field_is_told_with_both_values() -> None:
    own = {**JOB, "seed": 7, "optimizer": {"type": "Adam", "learning_rate": 0.1}}
    found = differences(JOB, own)
    assert [one.field for one in found] == ["seed", "optimizer"]
    assert differences_in_words(found, "in the job") == (
        "seed is 7 here and 0 in the job; optimizer.type is 'Adam' here and 'SGD' in the job"
    )
    assert found[0].to_json(74) == {"step": 74, "field": "seed", "before": 0, "after": 7}


def test_a_setting_of_none_differs_from_a_missing_one() -> None:
    """As after an upgrade of a framework whose optimizer has a new hyperparameter."""
    own = {**JOB, "optimizer": {**JOB["optimizer"], "fused": None}}
    told = "optimizer.fused is None here and missing in the checkpoint"
    assert differences_in_words(since_checkpoint(JOB, own), "in the checkpoint") == told


def test_changed_settings_of_an_optimizer_and_its_groups_are_named() -> None:
    def job(gamma: float, decay: float) -> dict[str, Any]:
        optimizer = {"type": "SGD", "lr": 0.1, "schedule": {"gamma": gamma, "size": 3}}
        return {"optimizer": optimizer, "parameter_groups": [{"lr": 0.1}, {"decay": decay}]}

    assert optimizer_changes(job(0.9, 0.1), job(0.8, 0.2)) == ("decay", "schedule.gamma")
    for same_or_unknown in (job(0.9, 0.1), {}):
        assert optimizer_changes(job(0.9, 0.1), same_or_unknown) == ()


def test_what_is_not_known_does_not_differ() -> None:
    assert not differences({}, JOB)
    assert not differences(JOB, {"seed": 0, "field of a newer version": 1})


def test_a_resumed_training_may_be_longer_but_nodes_agree_on_its_end() -> None:
    longer = {**JOB, "epochs": 9}
    assert not since_checkpoint(JOB, longer)
    assert [one.field for one in differences(JOB, longer)] == ["epochs"]


def test_a_generation_has_the_order_of_its_job_and_restarts_an_epoch_of_another_order() -> None:
    order = {"seed": 0, "rows": 240}
    for saved in ({}, JOB, {**JOB, "optimizer": {}}):
        assert data_order(JOB, saved) == {**order, "restarts_epoch": False}
    for saved in ({**JOB, "rows": 241}, {**JOB, "seed": 1}):
        assert data_order(JOB, saved) == {**order, "restarts_epoch": True}
