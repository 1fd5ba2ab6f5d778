"""A teacher whose model ends in a softmax: readers and `edl status` know it from the teacher."""

from __future__ import annotations

import numpy as np
import pytest

from edl.coordinator import fetch_status
from edl.distill_reader import DistilReader
from edl.errors import UsageError
from edl.mesh.local import TEACHER_READY
from edl.proto.arena import Array
from edl.supervise import Process, python_command, start
from edl.tests.system.coordinator_process import Coordinator
from edl.tests.teacher.linear import weights
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system

READY_S = 60.0
X = np.random.default_rng(0).standard_normal((6, 4), np.float32)


def serve(*options: str) -> Process:
    words = ("teacher", "serve", "--service", "s", "--model", "edl.tests.teacher.linear:softmax")
    return start(python_command("teacher", "edl", *words, *options))


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities: Array = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


@pytest.mark.parametrize("options", [(), ("--no-self-test",)])
def test_probabilities_are_not_taken_for_logits(options: tuple[str, ...]) -> None:
    teacher = serve(*options)
    try:
        address = teacher.expect(TEACHER_READY, READY_S)[3]
        with DistilReader([(X,)], service="s", teachers=[address], temperature=4.0) as reader:
            [(_, soft)] = reader
        np.testing.assert_allclose(soft, softmax(X @ weights() / 4), rtol=1e-4)
    finally:
        teacher.stop()


def test_a_reader_knows_that_labels_are_probabilities() -> None:
    teacher = serve()
    try:
        address = teacher.expect(TEACHER_READY, READY_S)[3]
        stated = DistilReader([(X,)], service="s", teachers=[address], soft_label_is="logits")
        with stated as reader, pytest.raises(UsageError, match="'logits' is probabilities"):
            list(reader)
    finally:
        teacher.stop()


@pytest.mark.parametrize(
    ("options", "kind"),
    [((), "logits=probabilities"), (("--output-kind", "logits=other"), "logits=other")],
)
def test_the_status_shows_the_kind(
    coordinator: Coordinator, options: tuple[str, ...], kind: str
) -> None:
    def shown() -> list[str]:
        services = fetch_status(coordinator.url).services
        teachers = [teacher for service in services for teacher in service.teachers]
        return [kind for teacher in teachers for kind in teacher.output_kinds]

    teacher = serve("--coordinator", coordinator.url, *options)
    try:
        wait_until(lambda: shown() == [kind])
    finally:
        teacher.stop()
