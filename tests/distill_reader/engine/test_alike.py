"""What is known of one answer is taken for another one only where it must be the same."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.engine.alike import Alike
from edl.distill_reader.engine.outcomes import Done, Job
from edl.distill_reader.label_forms import AS_GIVEN, LabelForms
from edl.proto import stream_answers
from edl.proto.arena import Array
from edl.proto.clients.oip_grpc import answer_of
from edl.proto.tensors import encode_response
from edl.scheduler.ledger.instructions import Span

FETCHES = ("y",)
LABELS = np.ones((3, 2), np.float32)


def job_of(number: int = 7, rows: int = 3, **other: Any) -> Job:
    job = Job(number, (Span(number, 0, rows),), {}, FETCHES, rows, AS_GIVEN, time.monotonic())
    return job._replace(**other)


def answered(number: int = 7, labels: Array = LABELS, content_id: str = "c") -> memoryview:
    said: dict[str, Any] = {"device_seconds": 1e-9, "content_id": content_id, "draining": True}
    response = encode_response(
        model_name="m", outputs={"y": labels}, request_id=str(number), parameters=said
    )
    return memoryview(stream_answers.answered(response))


def learn(alike: Alike, job: Job, answer: memoryview, **other: Any) -> Done:
    """As a link does with an answer that has passed all checks."""
    said = answer_of(stream_answers.read(answer))
    done = Done(job, dict(said.outputs), 1e-9, True, 0.1, "c", "n")._replace(**other)
    alike.learn(answer, said, done)
    return done


def seen(alike: Alike, job: Job, answer: memoryview) -> Done | None:
    return alike.done(job, answer, job.asked_at, 1)


def test_what_is_like_one_that_has_passed_says_the_same() -> None:
    alike, job = Alike(), job_of(123)
    assert seen(alike, job, answered(123)) is None, "nothing is known yet"
    learn(alike, job_of(), answered())
    done = seen(alike, job, answered(123, 2 * LABELS))
    assert done is not None
    assert done.job is job
    np.testing.assert_array_equal(done.labels["y"], 2 * LABELS)
    assert (done.draining, done.content_id, done.numerics_id) == (True, "c", "n")
    assert done.device_s == 1e-9
    assert 0 <= done.seconds < 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_elements_are_looked_at_each_time(bad: float) -> None:
    alike = Alike()
    learn(alike, job_of(), answered())
    labels = LABELS.copy()
    labels[2, 1] = bad
    assert seen(alike, job_of(), answered(labels=labels)) is None


def test_whatever_was_asked_otherwise_or_says_otherwise_is_looked_at() -> None:
    alike = Alike()
    learn(alike, job_of(), answered())
    assert seen(alike, job_of(8), answered()) is None, "it is of another request"
    assert seen(alike, job_of(rows=2), answered()) is None
    assert seen(alike, job_of(fetches=("z",)), answered()) is None
    assert seen(alike, job_of(forms=LabelForms.given("float16", None, False)), answered()) is None
    assert seen(alike, job_of(), answered(content_id="d")) is None
    assert seen(alike, job_of(), answered()) is not None
    alike.forget()
    assert seen(alike, job_of(), answered()) is None, "it may be another teacher"


def test_labels_that_are_not_the_output_as_it_came_are_made_each_time() -> None:
    alike = Alike()
    learn(alike, job_of(), answered(), labels={"y": LABELS})
    assert seen(alike, job_of(), answered()) is None
