"""Asks the scheduler what the stream is to do, and keeps what it remembers."""

from __future__ import annotations

import logging
import time

from ...scheduler import flow, profiles
from ...scheduler.ledger import Ledger
from ...scheduler.profiles import Measured, Profile
from ...scheduler.stream_figures import Figures
from ..config import ReaderConfig

log = logging.getLogger(__name__)


class Governor:
    """The flow control of one engine; `now` is always the engine's own monotonic time.

    Attributes:
        figures: the measurements that decisions stand on.
        decision: the latest one.
        memory: what it left.
        waiting_since: since when the training loop waits for a batch; None while it does not.
        source_ended: whether the source has nothing more for this epoch.
        profile: what the last run of this job has measured; None: nothing is remembered.
    """

    def __init__(self, config: ReaderConfig) -> None:
        self.figures = Figures()
        self.waiting_since: float | None = None
        self.source_ended = False
        self.profile: Profile | None = None
        self._service = config.service
        self._config = flow.FlowConfig(
            upper_bytes=config.upper_bytes,
            lower_bytes=config.lower_bytes,
            buffer_bytes=config.buffer_bytes,
            teachers_min=config.teachers_min,
            teachers_max=config.teachers_max,
        )
        self.memory = flow.FlowMemory.start()
        self.decision = flow.FlowDecision.start(self._config)

    def begin(self) -> None:
        """An epoch begins."""
        self.waiting_since = None
        self.source_ended = False
        self.figures.begin()

    def pulled(self, source_s: float, samples: int) -> None:
        """The source took so long to yield a batch."""
        self.source_ended = False
        self.figures.pulled(source_s, samples)

    def taken(self, step_s: float | None, samples: int, now: float) -> None:
        """The training loop has a batch, after `step_s` of work on the one before."""
        self.waiting_since = None
        if step_s is not None:
            self.figures.step(step_s, samples)
        self.figures.taken(samples, now)

    def measured(self, content_id: str) -> Measured:
        """What is known by now of the student, and of the teachers, which serve this content."""
        figures = self.figures
        return Measured(figures.t_t_s, figures.answers, figures.t_s_s, figures.steps, content_id)

    def decide(
        self,
        ledger: Ledger,
        unreachable: int,
        now: float,
        on_shelf: int = 0,
        content_id: str = "",
        judges: int = 0,
        cut_off: bool = False,
    ) -> flow.FlowDecision:
        """The next turn of Algorithm 1.

        Args:
            ledger: where each batch is.
            unreachable: teachers that are assigned and do not answer.
            now: the engine's time.
            on_shelf: batches that are being looked up in a label store, before the ledger has them.
            content_id: what the teachers serve; empty where it is not known.
            judges: teachers that are wanted besides, as others contradict each other.
            cut_off: as far as is known, no teacher can be reached, or none lets the reader in:
                others would not help.
        """
        figures = self.figures
        times = profiles.times(self.profile, self.measured(content_id), time.time())
        windows, free_windows, teachers, idle = ledger.load
        view = flow.FlowView(
            ledger.volume_bytes,
            ledger.queued + on_shelf,
            ledger.unlabelled + on_shelf,
            ledger.deliverable,
            windows,
            free_windows,
            idle,
            teachers,
            self.waiting_since is not None,
            self.source_ended,
            times.t_t_s,
            figures.pace_s(times.t_s_s),
            unreachable,
            ledger.batch_bytes,
            judges,
            times.presumed,
            cut_off,
        )
        before = self.decision.want
        self.decision, self.memory = flow.decide(view, self.memory, now, self._config)
        if (want := self.decision.want) != before:
            log.info("want %d teachers of %s: %s", want, self._service, self.decision.reason)
        return self.decision
