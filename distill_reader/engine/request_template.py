"""What requests to one teacher have in common, and how its model contradicts the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import RequestRefused
from ...proto.clients import LabelRequest, ModelDescription
from ...proto.datatypes import FREE, TensorSpec
from ...proto.forms import FITTING_KINDS, LabelForm, SoftLabelIs, check_form
from ...scheduler.reader_core.events import Peer, PublishedKind
from ..config import ReaderConfig
from .answers import Expected
from .outcomes import TeacherRequest


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The common part of requests to one teacher.

    Attributes:
        outputs: as in `LabelRequest`, like the next two.
        parameters: name the teacher's instance.
        output_parameters: name the forms.
        expected: what answers are checked against.
    """

    outputs: tuple[str, ...]
    parameters: dict[str, Any]
    output_parameters: dict[str, dict[str, Any]]
    expected: Expected

    def request(self, job: TeacherRequest) -> LabelRequest:
        return LabelRequest(
            job.inputs,
            self.outputs,
            job.name,
            self.parameters,
            self.output_parameters,
            job.is_current,
        )


def template_of(
    job: TeacherRequest, peer: Peer, found: ModelDescription, agreed: tuple[str, ...] = ()
) -> RequestTemplate:
    """The template of requests to `peer`; the arguments are those of `expected_of`."""
    instance = {"teacher_id": peer.teacher_id, "incarnation": str(peer.incarnation)}
    known = tuple(tensor.name for tensor in found.outputs)
    fetches = _fetched(job.fetches, known, peer.foreign)
    outputs = fetches or known
    asked = {name: job.forms.of(name) for name in outputs}
    forms = {name: form.parameters() for name, form in asked.items() if form is not None}
    return RequestTemplate(
        outputs if forms else fetches,
        instance if peer.incarnation else {},
        forms,
        expected_of(job, peer, found, agreed),
    )


def expected_of(
    job: TeacherRequest, peer: Peer, found: ModelDescription, agreed: tuple[str, ...] = ()
) -> Expected:
    """What the answer of `peer` is checked against.

    Args:
        job: what was requested.
        peer: the teacher.
        found: its model.
        agreed: names of the outputs, if its server does not publish them; empty: unknown.
    """
    teacher_id = peer.teacher_id if peer.incarnation else ""
    known = tuple(tensor.name for tensor in found.outputs) or agreed
    return Expected(
        teacher_id,
        peer.incarnation,
        peer.content_id,
        job.fetches or known,
        job.samples,
        job.forms,
        peer.foreign,
        found.outputs,
        whole=not job.fetches,
    )


def misfit_of_settings(config: ReaderConfig, peer: Peer, found: ModelDescription) -> str:
    """The first thing that the settings name and the model of `peer` lacks; empty: none.

    Args:
        config: of the member.
        peer: the teacher.
        found: its model; what it does not publish is not checked.
    """
    inputs, outputs = ([spec.name for spec in specs] for specs in (found.inputs, found.outputs))
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
    fetched = _fetched(config.fetches, tuple(outputs), peer.foreign)
    if wrong := [name for name in fetched or config.fetches if name not in outputs]:
        return f"fetches names output {wrong[0]!r}, the model has {outputs}"
    if not peer.foreign and (wrong := [n for n in config.labels.outputs if n not in outputs]):
        what = "a form, temperature or kind"
        return f"{what} is given for output {wrong[0]!r}, the model has {outputs}"
    for spec in found.outputs:
        if spec.name not in (fetched or outputs):
            continue
        form = config.labels.of(spec.name)
        if words := _contradiction(spec, form, config.labels.stated_kind(spec.name)):
            return words
        if form is not None and not (peer.foreign and form.k and spec.shape[-1:] == (FREE,)):
            try:
                check_form(spec.name, spec.datatype, spec.shape, form, spec.kind)
            except RequestRefused as error:
                return str(error)
    return ""


def published_kinds(
    config: ReaderConfig, peer: Peer, found: ModelDescription
) -> tuple[PublishedKind, ...]:
    """The kinds that `peer` publishes of the outputs that the settings request."""
    fetched = _fetched(config.fetches, tuple(spec.name for spec in found.outputs), peer.foreign)
    return tuple(
        PublishedKind(spec.name, spec.kind, is_label=not _is_made(config.labels.of(spec.name)))
        for spec in found.outputs
        if spec.kind and spec.name in (fetched or (spec.name,))
    )


def _is_made(form: LabelForm | None) -> bool:
    """Whether labels in this form are alike for every kind of output."""
    return form is not None and (form.k > 0 or form.temperature is not None)


def _contradiction(spec: TensorSpec, form: LabelForm | None, stated: SoftLabelIs | None) -> str:
    """How `soft_label_is` contradicts the kind that the teacher publishes; empty: it does not."""
    teacher_applies_softmax = form is not None and form.temperature is not None
    if stated is None or teacher_applies_softmax:
        return ""
    if not spec.kind or spec.kind in FITTING_KINDS[stated]:
        return ""
    return (
        f"output {spec.name!r} is {spec.kind}, and soft_label_is says {stated}: serve a model that"
        f" gives {stated}, or change soft_label_is and the loss to {spec.kind} (DistillLoss knows"
        f" both kinds); if the output is {stated}, start the teacher with --output-kind"
        f" {spec.name}={stated}"
    )


def _fetched(fetches: tuple[str, ...], known: tuple[str, ...], foreign: bool) -> tuple[str, ...]:
    """The outputs to request, as the server names them; empty: all.

    A foreign server may have another name for its only output, or not publish its outputs.
    """
    if not foreign or set(fetches) <= set(known):
        return fetches
    return known if len(fetches) == len(known) == 1 else ()
