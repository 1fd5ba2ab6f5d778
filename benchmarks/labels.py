"""Bytes, time and error of soft labels in each form, against float32, of 1000 classes.

The logits are drawn, with a fixed seed, to be like those of a trained image classifier: noise over
all classes, and for each sample a class that stands out by more or less, with a few dozen that
resemble it. The student's are those of one that is half way: the teacher's, weaker, with noise of
its own. The errors are those of what reaches the loss after the expansion to dense labels:

- KL(p || q) in nats, p the teacher's distribution at the temperature of the loss, q the same from
  the labels that came; the mean over samples.
- The gradient of the soft loss with respect to the student's logits, softmax(student / T) - q: the
  length of its difference from that of float32, over the length of that.

Times are CPU time of one core for one sample: of the teacher's predictor for encoding, of the
reader's engine for decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..proto.datatypes import Array
from ..proto.forms import LabelForm, decode, encode
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved

CLASSES = 1000
BATCH = 32
#: Of the loss; where the teacher applies it, it does so at the same.
TEMPERATURES = (1.0, 4.0)
FORMS = ("float32", "bfloat16", "float16", "topk:20", "topk:100")
LIMITED = "topk:20"
LIMIT_OF_BYTES = 0.05


@dataclass(frozen=True, slots=True)
class LabelCase:
    """A form, and the temperature of the loss that its labels are for."""

    form: LabelForm
    temperature: float

    @property
    def sends(self) -> str:
        return f"softmax at {self.temperature:g}" if self.form.temperature else "logits"


def run(quick: bool) -> BenchmarkReport:
    """One row for each form, of logits and of probabilities, at each temperature of the loss."""
    batches, repeats = (8, 2) if quick else (64, 20)
    teacher, student = draw(batches * BATCH)
    cases = [
        LabelCase(form, loss_t)
        for loss_t in TEMPERATURES
        for sent_t in (None, loss_t)
        for text in FORMS
        if (form := LabelForm.parse(text, sent_t)) is not None
    ]
    rows = [_row(case, teacher, student, repeats) for case in cases]
    goals = [
        Goal.judge(
            f"bytes of {LIMITED} of {row['sends']}, of those of float32",
            float(row["bytes_per_sample"]) / (4 * CLASSES),
            "<=",
            LIMIT_OF_BYTES,
        )
        for row in rows
        if row["form"] == LIMITED and row["loss_temperature"] == 1.0
    ]
    return BenchmarkReport(rows, goals)


def draw(samples: int, seed: int = 0) -> tuple[Array, Array]:
    """Logits of a teacher and of a student, float32 [samples, CLASSES]."""
    rng = np.random.default_rng(seed)
    teacher = rng.normal(0.0, 1.5, (samples, CLASSES))
    peaks = rng.uniform(6.0, 18.0, (samples, 1))  # from doubtful to certain
    alike = peaks * np.exp(-np.arange(40) / 8.0)
    places = rng.permuted(np.tile(np.arange(CLASSES), (samples, 1)), axis=1)[:, :40]
    np.put_along_axis(teacher, places, np.take_along_axis(teacher, places, 1) + alike, axis=1)
    student = 0.6 * teacher + rng.normal(0.0, 1.0, teacher.shape)
    return teacher.astype(np.float32), student.astype(np.float32)


def errors(case: LabelCase, teacher: Array, student: Array) -> tuple[float, float]:
    """KL divergence in nats and relative error of the gradient, of labels in the form of `case`."""
    sent = encode("y", teacher, case.form, "logits")
    came = decode("y", sent, case.form, case.form.parameters(CLASSES)).astype(np.float64)
    truth = _softmax(teacher / case.temperature)
    if case.form.temperature:
        seen = came / came.sum(axis=-1, keepdims=True)
    else:
        seen = _softmax(came / case.temperature)
    # float16 makes 0 of what is below 6e-8, of which no logarithm is taken.
    divergence = (truth * np.log(truth / np.maximum(seen, 1e-12))).sum(axis=-1).mean()
    own = _softmax(student / case.temperature)
    error = np.linalg.norm(seen - truth) / np.linalg.norm(own - truth)
    return float(divergence), float(error)


def _row(case: LabelCase, teacher: Array, student: Array, repeats: int) -> Row:
    batch = teacher[:BATCH]
    sent = encode("y", batch, case.form, "logits")
    said = case.form.parameters(CLASSES)
    rounds = interleaved(
        partial(_cpu_us, partial(encode, "y", batch, case.form), repeats),
        partial(_cpu_us, partial(decode, "y", sent, case.form, said), repeats),
    )
    encoding, decoding = (Estimate.of(figures).value for figures in zip(*rounds, strict=True))
    nbytes = sum(array.nbytes for array in sent.values()) / BATCH
    divergence, gradient = errors(case, teacher, student)
    return {
        "form": str(case.form),
        "sends": case.sends,
        "loss_temperature": case.temperature,
        "bytes_per_sample": nbytes,
        "saved_percent": 100 * (1 - nbytes / (4 * CLASSES)),
        "encode_us": encoding,
        "decode_us": decoding,
        "kl_nats": divergence,
        "gradient_error": gradient,
    }


def _softmax(logits: Array) -> Array:
    exps: Array = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    exps /= exps.sum(axis=-1, keepdims=True)
    return exps


def _cpu_us(work: Callable[[], object], repeats: int) -> float:
    """CPU microseconds of one sample of a batch."""
    began = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - began) / repeats / BATCH * 1e6
