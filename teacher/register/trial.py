"""Holds a foreign server against what a teacher has to show: finite, telling, like its canary.

The rules are those of our own teachers (`self_test`), as far as they can be held against a server
that is only known by its answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ...errors import (
    BadAnswer,
    ModelError,
    RequestRefused,
    UsageError,
    WireError,
    WrongInstance,
)
from ...proto.arena import Array
from ...proto.clients import LabelRequest, TeacherClient
from ...proto.datatypes import TensorSpec
from ...proto.forms import OutputKind, kind_of
from ..backends.tensor_specs import probe_batch
from ..self_test import Canary, check_finite, uninformative_outputs
from .config import RegisterConfig

#: Batches of noise by which a server without a canary is judged.
PROBES: Final = 3
#: Batches that measure it, so many on the way at once, as a reader has them.
MEASURED: Final = 8
IN_FLIGHT: Final = 2
#: One that is slow is measured by fewer.
_BUDGET_S: Final = 10.0
#: The incarnation that a batch of a test is for; lives are named by the time, so there is none.
_NEVER_BEGUN: Final = "0"
#: Letters of a server's description that stand in a message.
_WORDS: Final = 200

#: Name, shape of a sample and dtype of each output.
_Layout = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a server has shown.

    Attributes:
        t_t_s: seconds per sample between completions while it is busy; as much can be seen of its
            device from without.
        verified: "canary", or "declared" where there is none to compare with.
        oddities: outputs that tell nothing, in words.
        kinds: what the numbers of each output are, by name.
    """

    t_t_s: float
    verified: str
    oddities: tuple[str, ...]
    kinds: Mapping[str, OutputKind]


class Trial:
    """Tests one server, as often as is wanted.

    Args:
        client: of the server.
        config: which; its inputs go before what the server says, and batches name its id as the
            instance that they are for, as those of readers do.
        canary: what it is compared with; None: nothing.
    """

    def __init__(
        self, client: TeacherClient, config: RegisterConfig, canary: Canary | None
    ) -> None:
        self._client = client
        self._config = config
        self._canary = canary
        self._instance = {"teacher_id": config.member, "incarnation": _NEVER_BEGUN}
        self._refused = ""
        self._layout: _Layout | None = None
        self._reference_batch: Mapping[str, Array] = {} if canary is None else canary.inputs

    def close(self) -> None:
        """End the connection; a test that runs ends as TeacherLost. Idempotent."""
        self._client.close()

    def check_ready(self, timeout_s: float) -> None:
        """Raise an EdlError unless the model is ready."""
        self._client.probe(timeout_s)

    def run(self) -> TrialResult:
        """The test that lets it in, which also measures it.

        Raises:
            ModelError: what it answers is not what a teacher may.
            UsageError: nobody says what it takes, or what is said describes no batch; or it is a
                teacher of ours, which registers itself.
            EdlError: it does not answer.
        """
        batches = self._batches()
        answers = [self._checked_outputs(batch) for batch in batches]
        if not any(answers):
            self._refuse_unknown_inputs()
            raise ModelError(
                f"it refuses every batch of noise that its inputs describe ({self._refused}): fix"
                " free dimensions by --input, or give a --canary, or a smaller --rows"
            )
        batches = [batch for batch, answer in zip(batches, answers, strict=True) if answer]
        answers = [answer for answer in answers if answer]
        if len({_layout(answer) for answer in answers}) > 1:
            raise ModelError("its outputs have other names, shapes or dtypes in each answer")
        oddities = uninformative_outputs(answers)
        if self._canary is not None:
            self._canary.check(_with_canary_names(answers[0], self._canary.outputs))
        self._reference_batch, self._layout = batches[0], _layout(answers[0])
        verified = "canary" if self._canary else "declared"
        kinds = {name: kind_of([answer[name] for answer in answers]) for name in answers[0]}
        return TrialResult(self._measure(self._reference_batch), verified, oddities, kinds)

    def repeat(self) -> None:
        """The test of one that is in: a batch that it took at first; errors as of `run`."""
        answer = self._checked_outputs(self._reference_batch)
        if not answer:
            raise ModelError(f"it refuses what it took at first: {self._refused}")
        if self._layout not in (None, _layout(answer)):
            raise ModelError("its outputs have other names, shapes or dtypes than at first")
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
        except (ValueError, MemoryError, WireError) as error:  # of a server, nothing is believed
            raise _indescribable(inputs, str(error)) from None
        if not all(array.size for array in batches[0].values()):
            raise _indescribable(inputs, "it would hold nothing")
        return batches

    def _checked_outputs(self, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """The answer to one batch, checked; empty where noise is refused, which may be right."""
        try:
            answer = self._infer(batch)
        except RequestRefused as error:
            if self._canary is None:
                self._refused = str(error)
                return {}
            raise ModelError(f"it refuses the canary's samples: {error}") from None
        except BadAnswer as error:
            raise ModelError(f"its answer cannot be read: {error}") from None
        rows = len(next(iter(batch.values())))
        if not answer:
            raise ModelError("its answer holds no outputs")
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
            # Whoever minds the names and takes the batch without them is a teacher of ours.
            self._client.infer(LabelRequest(batch), self._config.timeout_s)
            raise UsageError(
                f"it is an edl-teacher ({error}), which registers itself: start it with"
                " --coordinator, and no sidecar"
            ) from None

    def _refuse_unknown_inputs(self) -> None:
        """Raise UsageError where inputs were declared that the server does not know."""
        if not self._config.inputs or not (
            known := self._client.probe(self._config.timeout_s).inputs
        ):
            return
        names = [tensor.name for tensor in known]
        for tensor in self._config.inputs:
            if tensor.name not in names:
                said = ", ".join(names)[:_WORDS]
                raise UsageError(f"it has no input {tensor.name!r}; its inputs are {said}")

    def _measure(self, batch: Mapping[str, Array]) -> float:
        rows = len(next(iter(batch.values())))
        began = time.monotonic()

        def label(number: int) -> int:
            if number and time.monotonic() - began > _BUDGET_S:
                return 0
            self._infer(batch)
            return 1

        with ThreadPoolExecutor(IN_FLIGHT, "edl-measure") as threads:
            done = sum(threads.map(label, range(MEASURED)))
        return (time.monotonic() - began) / (done * rows)


def _indescribable(inputs: Sequence[TensorSpec], why: str) -> UsageError:
    said = " ".join(map(str, inputs))
    return UsageError(
        f"no batch can be made of {said[:_WORDS]} ({why}): describe the inputs by --input"
        " NAME:DATATYPE:DIMS, or give a --canary"
    )


def _layout(answer: Mapping[str, Array]) -> _Layout:
    return tuple(
        sorted((name, array.shape[1:], array.dtype.name) for name, array in answer.items())
    )


def _with_canary_names(
    answer: Mapping[str, Array], kept: Mapping[str, Array]
) -> Mapping[str, Array]:
    """`answer` under the names of the canary: where each has one output, these are the same."""
    if len(answer) == len(kept) == 1:
        return dict(zip(kept, answer.values(), strict=True))
    return answer
