"""What the engine tells of itself: to the trainer, to the coordinator, to Prometheus; how often."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from ... import errors
from ...proto import coordinator_pb2 as pb
from ...proto.channel import Channel
from ...proto.version import PROTOCOL_VERSION
from ...scheduler import hunger
from ...scheduler.flow_values import State
from ...scheduler.ledger import Ledger
from ..config import ReaderConfig
from .contents import Contents
from .governor import Governor
from .labels import Labels
from .metrics import Exporter, open_exporter
from .pool import Pool
from .roster import Roster
from .words import waiting_for

STATS_EVERY_S = 0.2
REPORT_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """All that is told about; `epoch` is the highest (term, counter) of an assignment seen."""

    ledger: Ledger
    governor: Governor
    pool: Pool
    contents: Contents
    labels: Labels
    epoch: tuple[int, int]


class Teller:
    """Tells the trainer and the coordinator how the reader is. Used by the engine's thread alone.

    A report goes out at once when something has changed that the coordinator acts on, and at its
    pace otherwise. That the student starves is told as `scheduler.hunger` finds it: at once.
    """

    def __init__(self, config: ReaderConfig, channel: Channel, roster: Roster) -> None:
        self._config = config
        self._channel = channel
        self._roster = roster
        self._exporter: Exporter | None = None
        self._failed = False
        self._stats_at = self._reported_at = 0.0
        self._resends_told = 0
        self._told: tuple[Any, ...] = ()
        self._hunger = hunger.Hunger()
        self._starves_told = False

    def start(self) -> None:
        """Serve metrics, if that is wanted.

        Raises:
            UsageError: they cannot be served at the address that was given.
            AddressInUse: another process listens there.
        """
        self._exporter = open_exporter(self._config)

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()

    def answered(self, seconds: float) -> None:
        """A request took so long, from being asked for to its labels."""
        if self._exporter is not None:
            self._exporter.answered(seconds)

    # --- what went wrong

    def forgive(self) -> None:
        """Another epoch is another try."""
        self._failed = False

    def give_up(self, view: View, epoch: int) -> None:
        """No teacher has come for as long as the user is willing to wait."""
        config = self._config
        error = errors.NoTeacherAvailable(
            f"no teacher of service {config.service!r} for {config.wait_timeout_s:g} s:"
            f" {self._waiting_for(view)}"
        )
        self.fail(error, epoch)

    def fail(self, error: errors.EdlError, epoch: int | None) -> None:
        """Have the training loop raise `error`, in `epoch` or, if that is None, from now on."""
        if self._failed and epoch is not None:
            return
        self._failed = self._failed or epoch is not None
        self._channel.send("fatal", epoch=epoch, error=type(error).__name__, text=str(error))

    # --- how things are

    def tell(self, view: View, now: float) -> None:
        """Look whether something is to be told now."""
        governor, switch = view.governor, view.contents.switch
        self._hunger = hunger.follow(self._hunger, governor.memory.starved_s, now)
        starves = self._hunger.starves
        news = (governor.decision.want, view.pool.unreachable, switch.data_epoch, switch.told)
        changed = news != self._told or (starves and not self._starves_told)
        # A resend is told at once: so the trainer's count is right when the batch arrives there.
        resent = view.ledger.resends != self._resends_told
        if changed or resent or now - self._stats_at >= STATS_EVERY_S:
            self._stats_at, self._resends_told = now, view.ledger.resends
            self._tell_trainer(view, now)
        if changed or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at, self._told, self._starves_told = now, news, starves
            self._roster.report(report(self._config, view, starves, now))

    def _tell_trainer(self, view: View, now: float) -> None:
        figures = stats(view)
        self._channel.send("stats", **figures, waiting_for=self._waiting_for(view))
        if self._exporter is not None:
            self._exporter.show(view, now)

    def _waiting_for(self, view: View) -> str:
        trouble = self._roster.why() or view.pool.last_trouble
        awaited = view.contents.switch.awaited
        return waiting_for(view.governor, view.ledger, len(view.pool), awaited, trouble)


def stats(view: View) -> dict[str, Any]:
    """For the trainer: the fields of `ReaderStats` that only the engine knows."""
    ledger, governor = view.ledger, view.governor
    memory, decision, figures = governor.memory, governor.decision, governor.figures
    return {
        "resends": ledger.resends,
        "volume_bytes": ledger.volume_bytes,
        "want": decision.want,
        "needed": decision.needed,
        "t_t_s": figures.t_t_s or 0.0,
        "t_s_s": figures.t_s_s or 0.0,
        "teachers": list(ledger.teachers),
        "in_flight": [[name, len(ledger.in_flight_at(name))] for name in ledger.teachers],
        "served": [[name, figures.served(name)] for name in ledger.teachers],
        "starved_s": memory.starved_s,
        "blocked_s": memory.blocked_s,
        "source_wait_s": memory.source_wait_s,
        "state": decision.state,
        "content_id": view.contents.switch.told,
    }


def report(config: ReaderConfig, view: View, starves: bool, now: float) -> pb.StudentReport:
    """For the coordinator."""
    ledger, governor, switch = view.ledger, view.governor, view.contents.switch
    memory, decision, figures = governor.memory, governor.decision, governor.figures
    return pb.StudentReport(
        protocol_version=PROTOCOL_VERSION,
        service=config.service,
        student_id=config.student_id,
        incarnation=config.incarnation,
        want=decision.want,
        min=config.teachers_min,
        priority=config.priority,
        needed=decision.needed,
        t_s_seconds=figures.t_s_s or 0.0,
        t_t_seconds=figures.t_t_s or 0.0,
        volume_bytes=ledger.volume_bytes,
        upper_bytes=config.upper_bytes,
        lower_bytes=config.lower_bytes,
        starved_seconds=memory.starved_s,
        blocked_seconds=memory.blocked_s,
        source_wait_seconds=memory.source_wait_s,
        batches_delivered=figures.batches_taken,
        samples_delivered=figures.samples_taken,
        samples_per_second=figures.samples_per_s(now),
        resends=ledger.resends,
        teachers=ledger.teachers,
        term=view.epoch[0],
        counter=view.epoch[1],
        state="starved" if starves else _otherwise(decision.state),
        host=socket.gethostname(),
        unreachable=view.pool.unreachable,
        data_epoch=switch.data_epoch,
        content_id=switch.told,
    )


def _otherwise(state: State) -> State:
    """The state of a student that does not starve, though it may wait at this moment."""
    return "steady" if state == "starved" else state
