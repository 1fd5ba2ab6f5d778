"""Tests the answers of a foreign server: finite, informative, like its canary.

The rules are those of `self_test`, which tests our own teachers. Of a foreign server only the
answers are known, not the model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ...proto.arena import Array
from ...proto.clients import LabelRequest, TeacherClient
from ...proto.datatypes import TensorSpec
from ...proto.forms import OutputKind, kind_of
from ...runtime.errors import (
    BadAnswer,
    ModelError,
    RequestRefused,
    UsageError,
    WireError,
    WrongInstance,
)
from ..backends.tensor_specs import probe_batch
from ..request import check_finite
from ..self_test import Canary, uninformative_outputs
from .config import RegisterConfig

#: Batches of noise that test a server without a canary.
PROBES: Final = 3
#: Batches that measure a server, and the number in flight at a time, as from a reader.
MEASURED: Final = 8
IN_FLIGHT: Final = 2
#: After this time, a slow server is measured with fewer batches.
_BUDGET_S: Final = 10.0
#: The incarnation that test batches ask for. Incarnations are timestamps, so no instance has it.
_UNUSED_INCARNATION: Final = "0"
#: The longest part of a server's description in a message, in characters.
_MAX_DESCRIPTION: Final = 200

#: Name, shape of a sample, and dtype of each output.
_Layout = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True)
class ServerTestResult:
    """What a test found.

    Attributes:
        t_t_s: seconds per sample while `IN_FLIGHT` batches are at the server; its device time
            cannot be measured from outside.
        verified: "canary", or "declared" without a canary.
        warnings: outputs without information, in words.
        kinds: `OutputKind` of each output, by name.
    """

    t_t_s: float
    verified: str
    warnings: tuple[str, ...]
    kinds: Mapping[str, OutputKind]


class ServerTest:
    """Tests one server, as often as needed.

    Args:
        client: client of the server.
        config: settings; their inputs override those that the server states. Each test batch asks
            for the instance with the teacher's id, as batches of readers do.
        canary: known good answers; None for none.
    """

    def __init__(
        self, client: TeacherClient, config: RegisterConfig, canary: Canary | None
    ) -> None:
        self._client = client
        self._config = config
        self._canary = canary
        self._instance = {"teacher_id": config.member, "incarnation": _UNUSED_INCARNATION}
        self._last_refusal = ""
        self._layout: _Layout | None = None
        self._reference_batch: Mapping[str, Array] = {} if canary is None else canary.inputs

    def close(self) -> None:
        """Close the connection; a running test raises TeacherLost. Idempotent."""
        self._client.close()

    def check_ready(self, timeout_s: float) -> None:
        """Raise an EdlError unless the model is ready."""
        self._client.probe(timeout_s)

    def run(self) -> ServerTestResult:
        """Run the first test, and measure the server.

        Raises:
            ModelError: the answers are not acceptable for a teacher.
            UsageError: the inputs are unknown or describe no batch, or the server is a teacher of
                ours, which registers itself.
            EdlError: the server does not answer.
        """
        batches = self._batches()
        answers = [self._checked_outputs(batch) for batch in batches]
        if not any(answers):
            self._refuse_unknown_inputs()
            raise ModelError(
                "the server refuses every batch of noise that its inputs describe"
                f" ({self._last_refusal}): fix free dimensions by --input, or give a --canary, or a"
                " smaller --probe rows="
            )
        batches = [batch for batch, answer in zip(batches, answers, strict=True) if answer]
        answers = [answer for answer in answers if answer]
        if len({_layout(answer) for answer in answers}) > 1:
            raise ModelError("the outputs have other names, shapes or dtypes from answer to answer")
        warnings = uninformative_outputs(answers)
        if self._canary is not None:
            self._canary.check(_with_canary_names(answers[0], self._canary.outputs))
        self._reference_batch, self._layout = batches[0], _layout(answers[0])
        verified = "canary" if self._canary else "declared"
        kinds = {name: kind_of([answer[name] for answer in answers]) for name in answers[0]}
        return ServerTestResult(self._measure(self._reference_batch), verified, warnings, kinds)

    def repeat(self) -> None:
        """Test a registered server with a batch that it accepted at first; errors as in `run`."""
        answer = self._checked_outputs(self._reference_batch)
        if not answer:
            raise ModelError(
                f"the server refuses a batch that it accepted at first: {self._last_refusal}"
            )
        if self._layout not in (None, _layout(answer)):
            raise ModelError("the outputs have other names, shapes or dtypes than at first")
        if self._canary is not None:
            self._canary.check(_with_canary_names(answer, self._canary.outputs))

    def _batches(self) -> Sequence[Mapping[str, Array]]:
        if self._canary is not None:
            return [self._canary.inputs]
        inputs = self._config.inputs or self._client.probe(self._config.timeout_s).inputs
        if not inputs:
            raise UsageError(
                "the server does not say what its model takes: describe it by --input"
                " NAME:DATATYPE:DIMS, or give a --canary"
            )
        try:
            batches = [probe_batch(inputs, self._config.rows, number) for number in range(PROBES)]
        except (ValueError, MemoryError, WireError, ModelError) as error:  # of invalid specs
            raise _unusable_inputs(inputs, str(error)) from None
        if not all(array.size for array in batches[0].values()):
            raise _unusable_inputs(inputs, "it would hold nothing")
        return batches

    def _checked_outputs(self, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the checked outputs for a batch; empty if the server refuses noise, as it may."""
        try:
            answer = self._infer(batch)
        except RequestRefused as error:
            if self._canary is None:
                self._last_refusal = str(error)
                return {}
            raise ModelError(f"the server refuses the canary's samples: {error}") from None
        except BadAnswer as error:
            raise ModelError(f"the server's answer cannot be read: {error}") from None
        rows = len(next(iter(batch.values())))
        if not answer:
            raise ModelError("the server's answer holds no outputs")
        for name, array in answer.items():
            if array.dtype.hasobject:
                raise ModelError(f"output {name!r} is of BYTES, which no loss can use")
            if array.ndim == 0 or len(array) != rows:
                shape = list(array.shape)
                raise ModelError(f"output {name!r} has shape {shape} for {rows} samples")
        try:
            check_finite(answer)
        except BadAnswer as error:
            raise ModelError(str(error)) from None
        return answer

    def _infer(self, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        request = LabelRequest(batch, parameters=self._instance)
        try:
            return self._client.infer(request, self._config.timeout_s).outputs
        except WrongInstance as error:
            # Only our teachers refuse a wrong instance. To be sure, send the batch without one: our
            # teachers accept it.
            self._client.infer(LabelRequest(batch), self._config.timeout_s)
            raise UsageError(
                f"the server is an edl-teacher ({error}), which registers itself: start it with"
                " --redis, and no sidecar"
            ) from None

    def _refuse_unknown_inputs(self) -> None:
        """Raise UsageError for declared inputs that the server does not know."""
        if not self._config.inputs or not (
            known := self._client.probe(self._config.timeout_s).inputs
        ):
            return
        names = [tensor.name for tensor in known]
        for tensor in self._config.inputs:
            if tensor.name not in names:
                listed = ", ".join(names)[:_MAX_DESCRIPTION]
                raise UsageError(
                    f"the server has no input {tensor.name!r}; its inputs are {listed}"
                )

    def _measure(self, batch: Mapping[str, Array]) -> float:
        rows = len(next(iter(batch.values())))
        began = time.monotonic()

        def label(number: int) -> int:
            if number and time.monotonic() - began > _BUDGET_S:
                return 0
            self._infer(batch)
            return 1

        with ThreadPoolExecutor(IN_FLIGHT, "edl-measure") as threads:
            labelled = sum(threads.map(label, range(MEASURED)))
        return (time.monotonic() - began) / (labelled * rows)


def _unusable_inputs(inputs: Sequence[TensorSpec], why: str) -> UsageError:
    described = " ".join(map(str, inputs))
    return UsageError(
        f"no batch can be made of {described[:_MAX_DESCRIPTION]} ({why}): describe the inputs by"
        " --input NAME:DATATYPE:DIMS, or give a --canary"
    )


def _layout(answer: Mapping[str, Array]) -> _Layout:
    return tuple(
        sorted((name, array.shape[1:], array.dtype.name) for name, array in answer.items())
    )


def _with_canary_names(
    answer: Mapping[str, Array], kept: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Return `answer` with the canary's output name, if each has a single output."""
    if len(answer) == len(kept) == 1:
        return dict(zip(kept, answer.values(), strict=True))
    return answer
