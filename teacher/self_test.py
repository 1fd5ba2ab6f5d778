"""What a model has to show before it may register, beyond that it runs.

It is judged by several batches that differ: those of its canary, else noise. The rules are such
that an honest model passes them, whatever it makes of noise:

- Every output is finite, for every batch.
- Not every output is *constant*: the same for all samples of all batches, up to rounding.
- Not every output is *uniform*: the same for all classes (its last axis), in every sample. A head
  whose weights were never loaded answers so.
- It agrees with its canary, if one is named.

One output that is constant or uniform is a warning, not a reason: a mask or a scale may be that.
Outputs of integers are not judged: a class of noise may well always be the same. A batch that the
model refuses does not count, as nobody knows what values it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ..errors import BadAnswer, ModelError, RequestRefused, TeacherError
from ..proto.arena import Array
from ..proto.form_arrays import kind_of
from ..proto.forms import OutputKind
from .backends import Backend
from .canary import Canary
from .finite import check_finite
from .microbatch import run_in_micro_batches
from .probes import probe_batch

#: Batches of noise, and the samples of each; fewer, from 2 on, of a model that is very slow.
PROBES: Final = 4
PROBE_ROWS: Final = 4
_BUDGET_S: Final = 15.0
#: Of the greatest value: what is closer together is the same, but for rounding.
_SAME: Final = 1e-6

Answers = Sequence[Mapping[str, Array]]


def self_test(
    backend: Backend,
    canary: Canary | None,
    micro_batch: int,
    on_progress: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, OutputKind]:
    """Hold a loaded model against the rules, and find out what its outputs are.

    Args:
        backend: the model.
        canary: what it answered when it was known to be good; None: nobody has kept that.
        micro_batch: samples of one run, as it is to serve.
        on_progress: told what passed, and what is odd.
        clock: seconds.

    Returns:
        The kind of each output, by name; of none where the model refuses all that it was shown.

    Raises:
        ModelError: it fails; the message says at which rule, and what that means.
    """
    if canary is None:
        answers = list(_answers_to_noise(backend, micro_batch, clock))
    else:
        answers = [_answer_to(backend, micro_batch, canary)]
    oddities = odd_outputs(answers)
    judged = _judged(answers)
    if judged and not judged - oddities.keys():
        told = "; ".join(f"output {name!r} {why}" for name, why in oddities.items())
        raise ModelError(
            f"the self-test failed: {told}. Were the weights loaded? A model that answers so to"
            " noise only is judged by real samples, if 'edl teacher fingerprint --samples' keeps"
            " some in a canary; or serve it with --no-self-test"
        )
    for name, why in oddities.items():
        on_progress(f"warning: output {name!r} {why}")
    found = ["finite", "neither constant nor uniform" if judged else "nothing to compare"]
    if canary is not None:
        found.append(f"agrees with its canary within {canary.tolerance:g}")
    on_progress(f"self-test passed: {', '.join(found)}")
    return {name: kind_of([one[name] for one in answers]) for name in (*answers, {})[0]}


def odd_outputs(answers: Answers) -> dict[str, str]:
    """Those outputs that tell nothing, and in words why.

    Args:
        answers: outputs [N, ...] for batches that differ; of one name all of one trailing shape.
    """
    odd: dict[str, str] = {}
    for name in sorted(_judged(answers)):
        rows = np.concatenate([answer[name].astype(np.float64) for answer in answers])
        same = _SAME * np.abs(rows).max(initial=0.0)
        if len(rows) > 1 and np.ptp(rows, axis=0).max(initial=0.0) <= same:
            odd[name] = f"is constant: the same for {len(rows)} samples that differ"
        elif rows.ndim > 1 and rows.shape[-1] > 1 and np.ptp(rows, axis=-1).max() <= same:
            odd[name] = f"is uniform: the same for all {rows.shape[-1]} classes, in every sample"
    return odd


def _judged(answers: Answers) -> set[str]:
    """Outputs of floats; none where there are no two samples to compare."""
    if sum(len(next(iter(answer.values()), ())) for answer in answers) < 2:
        return set()
    return {
        name
        for name, array in answers[0].items()
        if array.dtype.kind in "fV" and all(a[name].shape[1:] == array.shape[1:] for a in answers)
    }


def _answers_to_noise(
    backend: Backend, micro_batch: int, clock: Callable[[], float]
) -> Iterator[Mapping[str, Array]]:
    rows = backend.spec.rows_per_run(PROBE_ROWS)
    began = clock()
    for number in range(PROBES):
        if number >= 2 and clock() - began > _BUDGET_S:
            return
        batch = probe_batch(backend.spec.inputs, rows, number)
        try:
            outputs = run_in_micro_batches(backend.run, batch, micro_batch)
        except RequestRefused:
            continue
        except TeacherError as error:
            raise ModelError(f"the self-test failed: {error}") from error
        yield _finite(outputs)


def _answer_to(backend: Backend, micro_batch: int, canary: Canary) -> Mapping[str, Array]:
    canary.check_content(backend.spec.content_id)
    try:
        outputs = _finite(run_in_micro_batches(backend.run, canary.inputs, micro_batch))
    except TeacherError as error:
        raise ModelError(f"the self-test failed on the canary's inputs: {error}") from error
    canary.check(outputs)
    return outputs


def _finite(outputs: Mapping[str, Array]) -> Mapping[str, Array]:
    try:
        check_finite(outputs)
    except BadAnswer as error:
        raise ModelError(
            f"the self-test failed: {error}. Were the weights loaded whole? Look for NaN in them, "
            "and at --precision and --preprocess: values too large for either overflow"
        ) from error
    return outputs
