"""Asks the scheduler what the stream is to do, and keeps what it remembers."""

from __future__ import annotations

from ...scheduler import flow, patience
from ...scheduler.ledger import Ledger
from ..config import ReaderConfig
from .figures import Figures


class Governor:
    """The flow control of one engine; `now` is always the engine's own monotonic time.

    Attributes:
        figures: the measurements that decisions stand on.
        decision: the latest one.
        memory: what it left.
        waiting_since: since when the training loop waits for a batch; None while it does not.
        source_ended: whether the source has nothing more for this epoch.
    """

    def __init__(self, config: ReaderConfig) -> None:
        self.figures = Figures()
        self.waiting_since: float | None = None
        self.source_ended = False
        self._config = flow.FlowConfig(
            upper_bytes=config.upper_bytes,
            lower_bytes=config.lower_bytes,
            teachers_min=config.teachers_min,
            teachers_max=config.teachers_max,
        )
        self._wait_timeout_s = config.wait_timeout_s
        self.memory = flow.FlowMemory.start()
        self.decision = flow.FlowDecision.start(self._config)
        self._no_teacher_since: float | None = None

    def decide(self, ledger: Ledger, unreachable: int, now: float) -> flow.FlowDecision:
        """The next turn of Algorithm 1; `unreachable` teachers are assigned and do not answer."""
        view = flow.FlowView(
            volume_bytes=ledger.volume_bytes,
            queued=ledger.queued,
            unlabelled=ledger.unlabelled,
            deliverable=ledger.deliverable,
            windows=ledger.windows,
            free_windows=ledger.free_windows,
            teachers=len(ledger.teachers),
            idle=ledger.idle,
            waiting=self.waiting_since is not None,
            source_ended=self.source_ended,
            t_t_s=self.figures.t_t_s,
            t_s_s=self.figures.pace_s,
            unreachable=unreachable,
        )
        self.decision, self.memory = flow.decide(view, self.memory, now, self._config)
        return self.decision

    def gives_up(self, ledger: Ledger, now: float) -> bool:
        """Whether the training loop has waited without any teacher for as long as it is willing."""
        if ledger.usable or self.waiting_since is None:
            self._no_teacher_since = None
        elif self._no_teacher_since is None:
            self._no_teacher_since = now
        return patience.is_over(self._no_teacher_since, now, self._wait_timeout_s)
