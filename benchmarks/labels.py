"""Bytes, CPU time and errors of soft labels of 1000 classes, in each form.

The logits are drawn with a fixed seed and resemble those of a trained image classifier: noise over
all classes, and for each sample one class with a more or less high peak and a few dozen similar
classes. The logits of the half-trained student are the teacher's, scaled down, with more noise. Two
errors of the dense labels that reach the loss are measured:

- KL(p || q) in nats, as a mean over samples. p is the teacher's distribution at the temperature of
  the loss, q the distribution from the received labels.
- The relative error of the gradient of the soft loss with respect to the student's logits. This
  gradient is softmax(student / T) - q, up to a factor; the exact gradient has p instead of q. The
  error is the norm of the difference of both, divided by the norm of the exact gradient.

Times are CPU time of one core for one sample: of encoding, which a teacher's predictor does, and
of decoding, which a reader's engine does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from ..proto.arena import Array
from ..proto.forms import LabelForm, decode, encode
from .report import BenchmarkReport, Estimate, Goal, Row, cpu_s, interleaved

CLASSES = 1000
BATCH = 32
#: Temperatures of the loss. If the teacher applies the softmax, it uses the same temperature.
TEMPERATURES = (1.0, 4.0)
FORMS = ("float32", "bfloat16", "float16", "topk:20", "topk:100")
#: The form with a goal: it takes at most this share of the bytes of float32.
LIMITED = "topk:20"
LIMIT_OF_BYTES = 0.05


@dataclass(frozen=True, slots=True)
class LabelCase:
    """A label form, and the temperature of the loss."""

    form: LabelForm
    temperature: float

    @property
    def sends(self) -> str:
        return f"softmax at {self.temperature:g}" if self.form.temperature else "logits"


def run(quick: bool) -> BenchmarkReport:
    """Return a row for each form of logits and of probabilities, at each temperature of the loss.

    Args:
        quick: fewer samples and repetitions.
    """
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
            f"bytes, {LIMITED} / float32 ({row['sends']})",
            float(row["bytes_per_sample"]) / (4 * CLASSES),
            "<=",
            LIMIT_OF_BYTES,
        )
        for row in rows
        if row["form"] == LIMITED and row["loss_temperature"] == 1.0
    ]
    return BenchmarkReport(rows, goals)


def draw(samples: int, seed: int = 0) -> tuple[Array, Array]:
    """Draw logits of a teacher and of a student, each float32 [samples, CLASSES]."""
    rng = np.random.default_rng(seed)
    teacher = rng.normal(0.0, 1.5, (samples, CLASSES))
    peaks = rng.uniform(6.0, 18.0, (samples, 1))  # from doubtful to certain
    similar = peaks * np.exp(-np.arange(40) / 8.0)
    classes = rng.permuted(np.tile(np.arange(CLASSES), (samples, 1)), axis=1)[:, :40]
    np.put_along_axis(teacher, classes, np.take_along_axis(teacher, classes, 1) + similar, axis=1)
    student = 0.6 * teacher + rng.normal(0.0, 1.0, teacher.shape)
    return teacher.astype(np.float32), student.astype(np.float32)


def errors(case: LabelCase, teacher: Array, student: Array) -> tuple[float, float]:
    """Return the KL divergence in nats and the relative error of the gradient of a label form.

    Args:
        case: the form and the temperature.
        teacher: logits, float32 [samples, CLASSES].
        student: logits of the same shape and dtype.
    """
    sent = encode("y", teacher, case.form, "logits")
    received = decode("y", sent, case.form, case.form.parameters(CLASSES)).astype(np.float64)
    truth = _softmax(teacher / case.temperature)
    if case.form.temperature:
        probabilities = received / received.sum(axis=-1, keepdims=True)
    else:
        probabilities = _softmax(received / case.temperature)
    # float16 rounds values below 3e-8 to 0, which has no logarithm.
    divergence = (truth * np.log(truth / np.maximum(probabilities, 1e-12))).sum(axis=-1).mean()
    student_distribution = _softmax(student / case.temperature)
    exact_gradient = student_distribution - truth
    error = np.linalg.norm(probabilities - truth) / np.linalg.norm(exact_gradient)
    return float(divergence), float(error)


def _row(case: LabelCase, teacher: Array, student: Array, repeats: int) -> Row:
    batch = teacher[:BATCH]
    sent = encode("y", batch, case.form, "logits")
    parameters = case.form.parameters(CLASSES)
    samples = interleaved(
        partial(cpu_s, partial(encode, "y", batch, case.form, "logits"), repeats),
        partial(cpu_s, partial(decode, "y", sent, case.form, parameters), repeats),
    )
    encoding, decoding = (Estimate.of(batch_s).value / BATCH * 1e6 for batch_s in samples)
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
