"""Who a model is, in a few lines; and its canary, taken while it is known to be good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import ModelError, TeacherError
from ..proto.arena import Array
from ..proto.tensors import InferRequest
from .backends.examples import probe_batch
from .loading import Loaded
from .microbatch import run_in_micro_batches
from .request import check_request
from .self_test import Canary, self_test

#: Samples of a canary of noise: enough to compare, and a small file.
CANARY_ROWS: Final = 4


def fingerprint(loaded: Loaded) -> dict[str, Any]:
    """What is worth knowing of a model before it is served, ready for JSON."""
    spec = loaded.spec
    return {
        "content_id": spec.content_id,
        "numerics_id": spec.numerics_id,
        "numerics": list(spec.numerics),
        "platform": spec.platform,
        "inputs": [str(tensor) for tensor in spec.inputs],
        "outputs": [str(tensor) for tensor in spec.outputs],
        "output_kinds": {tensor.name: tensor.kind or "unknown" for tensor in spec.outputs},
        "micro_batch": loaded.micro_batch,
        "t_t_s": loaded.t_t_s,
    }


def take_canary(
    loaded: Loaded,
    samples: Mapping[str, Array] | None,
    tolerance: float,
    on_progress: Callable[[str], None],
) -> Canary:
    """Have the model label samples, twice, and keep what it answered.

    Args:
        loaded: the model.
        samples: arrays [N, ...] by input; None: noise.
        tolerance: as of `Canary`.
        on_progress: told what was found.

    Raises:
        ModelError: the answers fail the self-test, or the second differs from the first.
        RequestRefused: the samples are not what the model takes.
    """
    backend = loaded.backend
    spec = backend.spec
    if samples is None:
        samples = probe_batch(spec.inputs, spec.rows_per_run(CANARY_ROWS), 0)
    check_request(InferRequest("", inputs=dict(samples)), spec)
    try:
        outputs = run_in_micro_batches(backend.run, samples, loaded.micro_batch)
    except TeacherError as error:
        raise ModelError(f"the model fails on the samples of the canary: {error}") from error
    canary = Canary.of(spec.content_id, tolerance, samples, outputs)
    self_test(backend, canary, loaded.micro_batch, on_progress)
    return canary
