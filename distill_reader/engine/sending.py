"""From what the core asks for to a job at a link: the rows out of their batches, and whose."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial

from ...errors import UsageError
from ...proto.clients.client import misfit
from ...proto.datatypes import Input
from ...proto.lent_arena import LentArena
from ...scheduler.ledger.instructions import Span
from ...scheduler.reader_core.instructions import Ask
from ...scheduler.reader_core.links import Links
from ..config import ReaderConfig
from .outcomes import Job
from .requests import Batches, Cutter, own_copies, samples_of
from .teacher_link import TeacherLink

log = logging.getLogger(__name__)


class Sending:
    """Hands the requests of one member to its links. Used by the engine's thread alone.

    Args:
        config: of the member.
        batches: that rows are of.
        ring: where they lie.
        links: that are open, by number.
        standing: how these stand.
    """

    def __init__(
        self,
        config: ReaderConfig,
        batches: Batches,
        ring: LentArena,
        links: Mapping[int, TeacherLink],
        standing: Links,
    ) -> None:
        self._config = config
        self._ring = ring
        self._cutter = Cutter(batches, ring, config.feeds)
        self._links = links
        self._standing = standing
        self._student = config.student_id
        self._first: int | None = None  # the batch that shows whether the settings are right

    def send(self, ask: Ask) -> None:
        """Send a request.

        Raises:
            UsageError: what the model takes is not in the batch, or it is the first batch and of
                another dtype or shape than every teacher says that its model takes.
        """
        config, link, send = self._config, self._links[ask.link], ask.send
        inputs, lent, stamps = self._cutter.cut(send.spans, link.inputs)
        if self._first is None:
            self._first = send.spans[0].batch
        if send.spans[0].batch == self._first:
            self._check(inputs)
        if ask.in_own_memory:
            inputs, lent, stamps = own_copies(inputs), {}, ()
        now, samples = time.monotonic(), samples_of(inputs.values())
        job = Job(
            send.request,
            send.spans,
            inputs,
            config.fetches,
            samples,
            config.labels,
            now,
            lent,
            partial(self._ring.are_current, stamps),
            self._student,
        )
        level = logging.INFO if send.attempt > 1 else logging.DEBUG
        if log.isEnabledFor(level):
            words, shown = "%s go to %s, attempt %d", _shown(send.spans)
            about = {"service": config.service, **job.about(send.teacher)}
            log.log(level, words, shown, send.teacher, send.attempt, extra=about)
        link.send(job)

    def _check(self, inputs: Mapping[str, Input]) -> None:
        """Raise UsageError where no model is one for what the settings make of a batch."""
        models = [link.found.inputs for link in self._links.values() if not link.peer.foreign]
        differences = [misfit(known, inputs) for known in models if known]
        if differences and all(differences) and not self._standing.unheard:
            raise UsageError(f"{differences[0]}: convert it in the source, or name another field")


def _shown(spans: tuple[Span, ...]) -> str:
    return ", ".join(f"rows {s.start} to {s.stop} of batch {s.batch}" for s in spans)
