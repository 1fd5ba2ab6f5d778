"""Requests to teachers, the template for the requests to one teacher, and outcomes.

Classes with an instance per batch are named tuples: creating one takes a third of the time of a
frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...proto.arena import Array
from ...proto.clients import LabelRequest, ModelDescription
from ...proto.datatypes import FREE, Input, TensorSpec
from ...proto.forms import FITTING_KINDS, LabelForm, SoftLabelIs, check_form
from ...proto.shared_buffer import BufferLocation
from ...runtime import errors
from ...runtime.errors import EdlError, RequestRefused
from ...scheduler.ledger.events import Span
from ...scheduler.reader_core.events import FailureCause, Peer, PublishedKind
from ..config import ReaderConfig
from ..store.rows import LabelRow
from .answers import ExpectedResponse

_NOWHERE: Final[Mapping[str, BufferLocation]] = MappingProxyType({})


def _always() -> bool:
    return True


class TeacherRequest(NamedTuple):
    """Rows of batches for a teacher to label.

    Attributes:
        number: its number in the ledger.
        spans: the rows, in the order of sending.
        inputs: inputs of the model, by name.
        samples: number of samples, the length of each input and each output.
        name: its id for teachers and logs: "JOB/RANK#NUMBER".
        created_at: time of creation by the monotonic clock; the request is then sent at once.
        locations: locations of the inputs in shared memory; empty: the inputs are sent over the
            network.
        is_current: returns whether the inputs' memory still has these rows.
    """

    number: int
    spans: tuple[Span, ...]
    inputs: Mapping[str, Input]
    samples: int
    name: str = ""
    created_at: float = 0.0
    locations: Mapping[str, BufferLocation] = _NOWHERE
    is_current: Callable[[], bool] = _always

    def about(self, teacher: str) -> dict[str, object]:
        """Fields for log records; see `logs.KEYS`."""
        numbers = sorted({span.batch for span in self.spans})
        return {"teacher": teacher, "request": self.name, "batches": numbers}

    @property
    def span_rows(self) -> int:
        """Number of rows in `spans`; a batch that cannot be split is one row, unlike `samples`."""
        return sum([span.rows for span in self.spans])


@dataclass(frozen=True, slots=True)
class TeacherReady:
    """The teacher serves; `inputs` are the names of its model's inputs."""

    inputs: tuple[str, ...]


class RequestDone(NamedTuple):
    """The checked labels of a request.

    Attributes:
        request: the request.
        labels: by name, as the training loop gets them; may be views of the response.
        device_s: seconds of work of the teacher's device.
        draining: the teacher is about to leave and asks for no more requests.
        seconds: seconds from the creation of the request to its labels.
        content_id: content of the model; empty: unknown.
        numerics_id: numerics of the labels; empty: unknown.
        store_rows: rows for the label store; empty without a store or a known content.
    """

    request: TeacherRequest
    labels: Mapping[str, Array]
    device_s: float
    draining: bool
    seconds: float
    content_id: str = ""
    numerics_id: str = ""
    store_rows: Sequence[LabelRow] = ()


@dataclass(frozen=True, slots=True)
class RequestOrProbeFailure:
    """A request failed for any reason, or the probe of the teacher if `request` is None."""

    request: TeacherRequest | None
    error: EdlError


Outcome = TeacherReady | RequestDone | RequestOrProbeFailure


#: Causes by class of error. The first class that fits decides; if none fits, the cause is "lost".
_CAUSES: Final[tuple[tuple[type[EdlError], FailureCause], ...]] = (
    (errors.InputsOverwritten, "overwritten"),
    (errors.RequestRefused, "refused"),
    (errors.VersionMismatch, "refused"),
    (errors.BadAnswer, "bad answer"),
    (errors.RateLimited, "full"),
    (errors.AccessError, "shut out"),
    (errors.PredictorCrashed, "crashed"),
    (errors.RetryableError, "failed"),
)


def failure_of(error: EdlError) -> tuple[FailureCause, str, float | None]:
    """Convert an error to `failure`, `reason` and `retry_after_s` of the core's events."""
    retry_after_s = error.retry_after_s if isinstance(error, errors.RateLimited) else None
    causes: Iterator[FailureCause] = (c for kind, c in _CAUSES if isinstance(error, kind))
    return next(causes, "lost"), str(error), retry_after_s


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The common part of requests to one teacher.

    Attributes:
        outputs: requested outputs, as the server names them; empty: all.
        parameters: identify the teacher's instance.
        output_parameters: requested forms, by output.
        expected: the properties that responses must have.
    """

    outputs: tuple[str, ...]
    parameters: dict[str, Any]
    output_parameters: dict[str, dict[str, Any]]
    expected: ExpectedResponse

    def message_of(self, request: TeacherRequest) -> LabelRequest:
        return LabelRequest(
            request.inputs,
            self.outputs,
            request.name,
            self.parameters,
            self.output_parameters,
            request.is_current,
        )


def template_of(
    config: ReaderConfig, peer: Peer, model: ModelDescription, learned_outputs: tuple[str, ...] = ()
) -> RequestTemplate:
    """Make the template of requests to a teacher.

    Args:
        config: settings of the member.
        peer: the teacher.
        model: description of the teacher's model by its server.
        learned_outputs: if the server does not publish its outputs, their names as found in its
            first responses; empty: not known yet.
    """
    instance = {"teacher_id": peer.teacher_id, "incarnation": str(peer.incarnation)}
    declared = {spec.name: spec for spec in model.outputs}
    fetches = _outputs_to_request(config.fetches, tuple(declared), peer.foreign)
    outputs = fetches or tuple(declared)
    requested = {name: config.labels.of(name) for name in outputs}
    forms = {name: form.parameters() for name, form in requested.items() if form is not None}
    expected = ExpectedResponse(
        peer.teacher_id if peer.incarnation else "",
        peer.incarnation,
        peer.content_id,
        config.fetches or tuple(declared) or learned_outputs,
        config.labels,
        peer.foreign,
        declared,
        whole=not config.fetches,
    )
    return RequestTemplate(
        outputs if forms else fetches, instance if peer.incarnation else {}, forms, expected
    )


def misfit_of_settings(config: ReaderConfig, peer: Peer, model: ModelDescription) -> str:
    """Describe the first contradiction between the settings and a teacher's model; empty: none.

    Args:
        config: settings of the member.
        peer: the teacher.
        model: description of the teacher's model; settings about properties that the server does
            not publish are not checked.
    """
    inputs, outputs = ([spec.name for spec in specs] for specs in (model.inputs, model.outputs))
    if inputs and config.feeds:
        named = [name for name, _ in config.feeds if name is not None]
        if wrong := [name for name in named if name not in inputs]:
            return f"feeds names input {wrong[0]!r}, the model has {inputs}"
        if len(config.feeds) > len(inputs):
            return f"feeds names {len(config.feeds)} fields, the model has the inputs {inputs}"
        fed = named or inputs[: len(config.feeds)]
        if missing := [name for name in inputs if name not in fed]:
            return f"feeds has no field for the model's inputs {missing}"
    if not outputs:
        return ""
    fetched = _outputs_to_request(config.fetches, tuple(outputs), peer.foreign)
    if wrong := [name for name in fetched or config.fetches if name not in outputs]:
        return f"fetches names output {wrong[0]!r}, the model has {outputs}"
    if not peer.foreign and (wrong := [n for n in config.labels.outputs if n not in outputs]):
        what = "a form, temperature or kind"
        return f"{what} is given for output {wrong[0]!r}, the model has {outputs}"
    for spec in model.outputs:
        if spec.name not in (fetched or outputs):
            continue
        form = config.labels.of(spec.name)
        if contradiction := _contradiction(spec, form, config.labels.stated_kind(spec.name)):
            return contradiction
        if form is not None and not (peer.foreign and form.k and spec.shape[-1:] == (FREE,)):
            try:
                check_form(spec.name, spec.datatype, spec.shape, form, spec.kind)
            except RequestRefused as error:
                return str(error)
    return ""


def published_kinds(
    config: ReaderConfig, peer: Peer, model: ModelDescription
) -> tuple[PublishedKind, ...]:
    """Return the kinds that `peer` publishes for the requested outputs."""
    fetched = _outputs_to_request(
        config.fetches, tuple(spec.name for spec in model.outputs), peer.foreign
    )
    return tuple(
        PublishedKind(spec.name, spec.kind, not _is_converted(config.labels.of(spec.name)))
        for spec in model.outputs
        if spec.kind and spec.name in (fetched or (spec.name,))
    )


def _is_converted(form: LabelForm | None) -> bool:
    """Whether labels in this form mean the same, whatever kind of numbers the model outputs.

    So it is with top-k or a temperature. A form that only changes the dtype converts nothing.
    """
    return form is not None and (form.k > 0 or form.temperature is not None)


def _contradiction(spec: TensorSpec, form: LabelForm | None, stated: SoftLabelIs | None) -> str:
    """Describe how `soft_label_is` contradicts the published kind; empty: it does not."""
    teacher_applies_softmax = form is not None and form.temperature is not None
    if stated is None or teacher_applies_softmax:
        return ""
    if not spec.kind or spec.kind in FITTING_KINDS[stated]:
        return ""
    fitting = [each for each, kinds in FITTING_KINDS.items() if spec.kind in kinds]
    change = f", or change soft_label_is and the loss to {fitting[0]}" if fitting else ""
    return (
        f"output {spec.name!r} is {spec.kind}, and soft_label_is says {stated}: serve a model that"
        f" gives {stated}{change}; if the output is {stated}, start the teacher with --output"
        f" {spec.name}={stated}"
    )


def _outputs_to_request(
    fetches: tuple[str, ...], published: tuple[str, ...], foreign: bool
) -> tuple[str, ...]:
    """Return the outputs to request, by the server's names; empty: all.

    A foreign server may have another name for its only output, or not publish its outputs.
    """
    if not foreign or set(fetches) <= set(published):
        return fetches
    return published if len(fetches) == len(published) == 1 else ()
