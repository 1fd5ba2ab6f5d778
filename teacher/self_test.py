"""The self-test of a model before it serves, and canaries: samples with known good answers.

A canary file is a numpy archive (`.npz`) without pickled objects: arrays of a few samples and of
the answer, and a header in JSON. Only outputs of floats are compared, unless the model has none:
an integer output, such as the number of the best class, may differ between machines if two classes
are nearly equal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from ..proto.arena import Array
from ..proto.datatypes import datatype_of, dtype_of
from ..proto.forms import OutputKind, kind_of
from ..runtime.errors import (
    BadAnswer,
    EdlError,
    ModelError,
    RequestRefused,
    TeacherError,
    UsageError,
)
from ..runtime.files import replacing
from .backends import Backend, run_in_micro_batches
from .backends.tensor_specs import probe_batch
from .request import check_finite

#: Batches of noise, and samples per batch. A very slow model gets fewer batches, at least 2.
PROBES: Final = 4
PROBE_ROWS: Final = 4
_BUDGET_S: Final = 15.0
#: Values closer than this share of the largest value differ only by rounding.
_SAME: Final = 1e-6

Answers = Sequence[Mapping[str, Array]]


def self_test(
    backend: Backend,
    canary: Canary | None,
    micro_batch: int,
    on_progress: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, OutputKind]:
    """Test a loaded model, and classify its outputs.

    Args:
        backend: the model.
        canary: known good answers; None if there are none.
        micro_batch: samples per run when it serves.
        on_progress: called with the result, and with warnings.
        clock: seconds.

    Returns:
        The kind of each output, by name; empty if the model refuses all test batches.

    Raises:
        ModelError: the model fails the test; the message says why, and what to check.
    """
    if canary is None:
        answers = list(_answers_to_noise(backend, micro_batch, clock))
    else:
        answers = [_answer_to(backend, micro_batch, canary)]
    try:
        warnings = uninformative_outputs(answers)
    except ModelError as error:
        raise ModelError(
            f"the self-test failed: {error} If only noise gets such answers, write a canary of real"
            " samples by 'edl teacher fingerprint MODEL --canary FILE,samples=...' and serve with"
            " --canary FILE; or serve with --no-self-test"
        ) from None
    for warning in warnings:
        on_progress(f"warning: {warning}")
    if not answers:
        on_progress(
            "self-test passed: nothing to judge, because the model refuses all test batches"
        )
        return {}
    if not _comparable_outputs(answers):
        findings = ["finite", "nothing to compare"]
    elif warnings:
        findings = ["finite", "other outputs neither constant nor uniform"]
    else:
        findings = ["finite", "neither constant nor uniform"]
    if canary is not None:
        findings.append(f"agrees with its canary within {canary.tolerance:g}")
    on_progress(f"self-test passed: {', '.join(findings)}")
    return {name: kind_of([answer[name] for answer in answers]) for name in answers[0]}


def uninformative_outputs(answers: Answers) -> tuple[str, ...]:
    """Describe outputs that carry no information.

    Args:
        answers: outputs [N, ...] for different batches. Outputs that are not floats, or change
            their trailing shape, are not judged.

    Raises:
        ModelError: outputs were judged, and none of them carries information.
    """
    descriptions: list[str] = []
    judged = sorted(_comparable_outputs(answers))
    for name in judged:
        rows = np.concatenate([answer[name].astype(np.float64) for answer in answers])
        same = _SAME * np.abs(rows).max(initial=0.0)
        if np.ptp(rows, axis=0).max(initial=0.0) <= same:
            descriptions.append(
                f"output {name!r} is constant: the same for {len(rows)} samples that differ"
            )
        elif rows.ndim > 1 and rows.shape[-1] > 1 and np.ptp(rows, axis=-1).max() <= same:
            classes = rows.shape[-1]
            descriptions.append(
                f"output {name!r} is uniform: the same for all {classes} classes, in every sample"
            )
    if judged and len(descriptions) == len(judged):
        raise ModelError(f"{'; '.join(descriptions)}. Were the weights loaded?")
    return tuple(descriptions)


def _comparable_outputs(answers: Answers) -> set[str]:
    """Return the float outputs with equal trailing shapes; none for fewer than 2 samples."""
    if sum(len(next(iter(answer.values()), ())) for answer in answers) < 2:
        return set()
    return {
        name
        for name, array in answers[0].items()
        if _is_float(array) and all(a[name].shape[1:] == array.shape[1:] for a in answers)
    }


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fV"  # V: bfloat16, which is no type of numpy


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
            f"the self-test failed: {error}. Are the weights complete and free of NaN? Check "
            "--precision and --preprocess too: values out of their range overflow"
        ) from error
    return outputs


_VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class Canary:
    """A few samples and their labels.

    Attributes:
        content_id: of the model that labelled them.
        tolerance: the largest accepted difference of an output, as a share of its largest value in
            the canary.
        inputs: arrays [N, ...] by input.
        outputs: arrays [N, ...] by output.

    Raises:
        UsageError: the tolerance is not within [0, 1).
    """

    content_id: str
    tolerance: float
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"a tolerance is a share from 0 to below 1, not {self.tolerance:g}")

    @classmethod
    def from_answer(
        cls,
        content_id: str,
        tolerance: float,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> Self:
        """Create a canary from a complete answer; only outputs to compare are kept."""
        floats = {name: array for name, array in outputs.items() if _is_float(array)}
        return cls(content_id, tolerance, inputs, floats or outputs)

    def check_content(self, content_id: str) -> None:
        """Raise ModelError unless the canary is of this content."""
        if content_id != self.content_id:
            raise ModelError(
                f"the canary is of content {self.content_id[:12]}, the model is {content_id[:12]}:"
                " write one for this model by 'edl teacher fingerprint MODEL --canary FILE', or"
                " serve the model that it was written for"
            )

    def differences(self, outputs: Mapping[str, Array]) -> dict[str, float]:
        """Return how far each output is from the canary, as a share of the canary's largest value.

        Raises:
            ModelError: an output is missing, or has another shape.
        """
        differences: dict[str, float] = {}
        for name, kept in self.outputs.items():
            array = outputs.get(name)
            if array is None or array.shape != kept.shape:
                problem = "is missing" if array is None else f"has shape {list(array.shape)}"
                raise ModelError(
                    f"output {name!r} {problem}; in the canary it has shape {list(kept.shape)}"
                )
            expected = kept.astype(np.float64)
            largest = np.abs(array.astype(np.float64) - expected).max(initial=0.0)
            differences[name] = float(largest / (np.abs(expected).max(initial=0.0) or 1.0))
        return differences

    def check(self, outputs: Mapping[str, Array]) -> None:
        """Raise ModelError unless `outputs`, for `inputs`, agree within the tolerance."""
        for name, difference in self.differences(outputs).items():
            if not difference <= self.tolerance:  # NaN does not agree
                raise ModelError(
                    f"output {name!r} differs from the canary by {difference:.2g} of its greatest"
                    f" value, and {self.tolerance:g} is tolerated: this machine, device or"
                    " framework computes something else"
                )

    def save(self, path: Path) -> None:
        """Write the file atomically.

        Raises:
            UsageError: it cannot be written.
            ModelError: an array is of BYTES, which the format cannot hold.
        """
        header = {
            "version": _VERSION,
            "content_id": self.content_id,
            "tolerance": self.tolerance,
            "inputs": _names_and_datatypes(self.inputs),
            "outputs": _names_and_datatypes(self.outputs),
        }
        arrays = [*self.inputs.values(), *self.outputs.values()]
        plain: dict[str, Any] = {f"array{n}": _storable(array) for n, array in enumerate(arrays)}
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        # np.savez would add a suffix to a path.
        with replacing(path) as part, part.open("wb") as file:
            np.savez_compressed(file, header=text, **plain)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a canary; raises ModelError if the file is not one."""
        problem = "is no canary: write one by 'edl teacher fingerprint MODEL --canary FILE'"
        with _opened(path, ModelError, problem) as archive:
            header = json.loads(archive["header"].tobytes())
            if header["version"] != _VERSION:
                raise ModelError(f"{path} is a canary of another version: write it anew")
            named = [*header["inputs"], *header["outputs"]]
            arrays = [
                archive[f"array{number}"].view(dtype_of(datatype))
                for number, (_, datatype) in enumerate(named)
            ]
            names = [str(name) for name, _ in named]
            inputs_count = len(header["inputs"])
            return cls(
                str(header["content_id"]),
                float(header["tolerance"]),
                dict(zip(names[:inputs_count], arrays[:inputs_count], strict=True)),
                dict(zip(names[inputs_count:], arrays[inputs_count:], strict=True)),
            )


def _names_and_datatypes(arrays: Mapping[str, Array]) -> list[list[Any]]:
    return [[name, datatype_of(array.dtype)] for name, array in arrays.items()]


def _storable(array: Array) -> Array:
    """Return the array as the archive stores it: bfloat16 as UINT16. Objects raise ModelError."""
    if array.dtype.hasobject:
        raise ModelError("a canary holds numbers only: this model takes or gives BYTES")
    contiguous = np.ascontiguousarray(array)
    return contiguous.view(np.uint16) if array.dtype.kind == "V" else contiguous


def load_samples(path: Path, names: Iterable[str]) -> dict[str, Array]:
    """Read the user's samples from an `.npz` file with an array for each input.

    Raises:
        UsageError: it cannot be read, or lacks an input.
    """
    input_names = list(names)
    with _opened(path, UsageError, f"does not hold an array for each of {input_names}") as archive:
        return {name: archive[name] for name in input_names}


@contextmanager
def _opened(path: Path, error_class: type[EdlError], problem: str) -> Iterator[Any]:
    """Open an archive; every problem with it raises `error_class`, with `problem` as its reason."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise error_class(f"cannot read {path}: {error.strerror}") from None
    try:
        with file, np.load(file, allow_pickle=False) as archive:
            yield archive
    except error_class:
        raise
    except Exception as error:  # numpy, zipfile and zlib may raise anything for damaged files
        raise error_class(f"{path} {problem}") from error
