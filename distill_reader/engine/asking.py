"""A job as a request to one teacher, and what its answer has to be like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...proto.clients import Found, Request
from .answers import Expected
from .outcomes import Job, Peer


@dataclass(frozen=True, slots=True)
class Wording:
    """What all requests to one teacher have in common, as long as the same is asked of it.

    Attributes:
        outputs: as in `Request`, like the others.
        parameters: name the instance that is asked.
        output_parameters: name the forms.
    """

    outputs: tuple[str, ...]
    parameters: dict[str, Any]
    output_parameters: dict[str, dict[str, Any]]

    def request(self, job: Job) -> Request:
        """What is sent."""
        number = str(job.request)
        return Request(job.inputs, self.outputs, number, self.parameters, self.output_parameters)


def wording_of(job: Job, peer: Peer, found: Found) -> Wording:
    """How `peer` is asked, whose model was last found to be `found`."""
    instance = {"teacher_id": peer.teacher_id, "incarnation": str(peer.incarnation)}
    known = tuple(tensor.name for tensor in found.outputs)
    fetches = _fetched(job.fetches, known, peer.foreign)
    outputs = fetches or known
    asked = {name: job.forms.of(name) for name in outputs}
    forms = {name: form.parameters() for name, form in asked.items() if form is not None}
    return Wording(outputs if forms else fetches, instance if peer.incarnation else {}, forms)


def expected_of(job: Job, peer: Peer, found: Found, agreed: tuple[str, ...] = ()) -> Expected:
    """What the answer of `peer` is held against.

    Args:
        job: what it was asked.
        peer: who was asked.
        found: its model.
        agreed: names of the outputs, where its server does not say them; empty: not known either.
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


def _fetched(fetches: tuple[str, ...], known: tuple[str, ...], foreign: bool) -> tuple[str, ...]:
    """The outputs to ask for, as the server names them; empty: every one.

    A foreign one may have another name for its only output, or not say what it has.
    """
    if not foreign or set(fetches) <= set(known):
        return fetches
    return known if len(fetches) == len(known) == 1 else ()
