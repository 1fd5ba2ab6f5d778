"""A batch as a request to one teacher, and what its answer has to be like."""

from __future__ import annotations

from ...proto.clients import Found, Request
from .answers import Expected
from .outcomes import Job, Peer


def request_of(job: Job, peer: Peer, found: Found) -> Request:
    """What is sent to `peer`, whose model was last found to be `found`."""
    instance = {"teacher_id": peer.teacher_id, "incarnation": str(peer.incarnation)}
    known = tuple(tensor.name for tensor in found.outputs)
    fetches = _fetched(job.fetches, known, peer.foreign)
    outputs = fetches or known
    asked = {name: job.forms.of(name) for name in outputs}
    forms = {name: form.parameters() for name, form in asked.items() if form is not None}
    return Request(
        job.inputs,
        outputs if forms else fetches,
        str(job.number),
        instance if peer.incarnation else {},
        forms,
    )


def expected_of(job: Job, peer: Peer) -> Expected:
    """What the answer of `peer` is held against."""
    teacher_id = peer.teacher_id if peer.incarnation else ""
    return Expected(
        teacher_id,
        peer.incarnation,
        peer.content_id,
        job.fetches,
        job.samples,
        job.forms,
        peer.foreign,
    )


def _fetched(fetches: tuple[str, ...], known: tuple[str, ...], foreign: bool) -> tuple[str, ...]:
    """The outputs to ask for, as the server names them; empty: every one.

    A foreign one may have another name for its only output, or not say what it has.
    """
    if not foreign or set(fetches) <= set(known):
        return fetches
    return known if len(fetches) == len(known) == 1 else ()
