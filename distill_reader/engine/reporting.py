"""Reports the engine's state to the trainer and to the coordinator."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ...proto import coordinator_pb2 as pb
from ...proto.channel import Channel
from ...proto.dataclass_json import to_plain
from ...proto.protocols import PROTOCOL_VERSION
from ...runtime import errors
from ...scheduler.flow import FlowState
from ...scheduler.reader_core.events import PublishedKind
from ..config import ReaderConfig
from .batch_delivery import BatchDelivery
from .ensemble_member import EnsembleMember
from .metrics import Exporter


def waiting_for(member: EnsembleMember) -> str:
    """Describe what the training loop or a call waits for; empty while neither waits.

    An example is "0 of 3 teachers live, teacher a was lost: its lease ran out".
    """
    core, ledger, links = member.core, member.ledger, member.core.teachers.links
    if core.waiting_since is None and not core.calls:
        return ""
    if core.decision.state == "source_wait" and not core.calls:
        return "the source has not yielded the next batch"
    withheld = len(ledger.withheld)
    looked_up = withheld + (0 if member.label_cache is None else len(member.label_cache))
    if looked_up and ledger.unlabelled == withheld:
        return f"batches that wait for the label store, or for the first labels: {looked_up}"
    if (since := core.teachers.silent_since) is not None:
        wall_s = time.time() - (time.monotonic() - since)
        at = time.strftime("%H:%M:%S", time.localtime(wall_s))
        clauses = [f"{len(links)} of {len(links)} teachers unreachable since {at}"]
    elif ledger.usable == 0:
        clauses = [f"0 of {len(links)} teachers live"]
    else:
        return f"teachers at work: {ledger.usable}, requests in flight: {ledger.in_flight}"
    if awaited := member.core.model_switch.state.awaited:
        clauses.append(f"waiting for a teacher of content {awaited}")
    reason = member.roster.missing_reason() or links.last_trouble
    return ", ".join([*clauses, *filter(None, [reason])])


def story(member: EnsembleMember, batch: int, now: float) -> list[str]:
    """Return the recorded events of a batch, each with the instructions that followed.

    Args:
        member: the member that has recorded them.
        batch: number of the batch.
        now: time of the engine's clock.

    Returns:
        Lines in chronological order, as in "0.213 s ago, event 814 of resnet: AnswerCame(...)".
    """
    lines = []
    for step in member.core.story(batch):
        lines.append(
            f"{now - step.at:.3f} s ago, event {step.event_number} of {member.config.service}:"
            f" {step.event}"
        )
        lines += [f"  so {instruction}" for instruction in step.instructions]
    return lines


#: Interval of reports to the coordinator, and shortest interval of reports that the core requests.
REPORT_EVERY_S, URGENT_EVERY_S = 1.0, 0.01


def student_report(member: EnsembleMember, now: float) -> pb.StudentReport:
    """Return the student's report to the manager of this service."""
    config, ledger, core = member.config, member.ledger, member.core
    memory, decision, stats = core.memory, core.decision, core.stats
    content, teachers = core.model_switch.state, core.teachers
    return pb.StudentReport(
        protocol_version=PROTOCOL_VERSION,
        service=config.service,
        student_id=config.student_id,
        want=decision.want,
        min=config.teachers_min,
        priority=config.priority,
        needed=decision.needed,
        t_s_seconds=stats.t_s_s or 0.0,
        t_t_seconds=stats.t_t_s or 0.0,
        volume_bytes=ledger.volume_bytes,
        upper_bytes=config.upper_bytes,
        lower_bytes=config.lower_bytes,
        starved_seconds=memory.starved_s,
        blocked_seconds=memory.blocked_s,
        source_wait_seconds=memory.source_wait_s,
        batches_delivered=stats.batches_taken,
        samples_delivered=stats.samples_taken,
        samples_per_second=stats.samples_per_s(now),
        resends=ledger.resends,
        teachers=ledger.teachers,
        term=core.assignment_version[0],
        counter=core.assignment_version[1],
        state="starved" if core.starves else _unless_starved(decision.state),
        host=socket.gethostname(),
        unreachable=len(core.unavailable),
        data_epoch=content.data_epoch,
        content_id=content.reported,
        stragglers=teachers.lateness.stragglers,
        hedges=ledger.hedges,
        ejections=teachers.breakers.ejections.total(),
        ejected=teachers.breakers.ejected.keys(),
        disputed=teachers.comparisons.panel.disputed,
        ejected_for=teachers.breakers.ejected.values(),
        half_open=teachers.breakers.half_open(ledger.usable, now),
        unavailable=sorted(core.unavailable),
        cut_off=int(core.is_cut_off),
    )


def _unless_starved(state: FlowState) -> FlowState:
    """Return the reported state of a student that does not starve: short waits count as steady."""
    return "steady" if state == "starved" else state


STATS_EVERY_S = 0.2
#: States from worst to best. The state of an ensemble is the worst state of its members.
_WORST: Final = ("starved", "source_wait", "blocked", "steady")


class TrainerReporter:
    """Reports the reader's state to trainer, coordinator and metrics. For the engine's thread.

    Attributes:
        calls: number of calls that have ended, by outcome.
        exporter: exporter of metrics; None: not configured.
        epoch_failed: the training loop gets an error in this epoch, and pulling has ended.
    """

    def __init__(
        self,
        config: ReaderConfig,
        channel: Channel,
        members: Sequence[EnsembleMember],
        batch_delivery: BatchDelivery,
    ) -> None:
        self._config = config
        self._channel = channel
        self._members = members
        self._batch_delivery = batch_delivery
        self.calls = Counter[str]()
        self.exporter: Exporter | None = None
        self.epoch_failed = False
        self._stats_at = 0.0
        self._request = self._answered = 0  # latest request for stats, and latest answered one
        #: Resends and kinds of labels of each member, as sent last.
        self._sent_before_batch: list[tuple[int, Mapping[str, PublishedKind]]] = []
        #: The latest state that was sent, by service; an engine's initial states are not sent.
        self._handoff_states = {
            member.config.service: member.core.model_switch.handoff_state for member in members
        }

    def start(self) -> None:
        """Serve metrics, if configured.

        Raises:
            UsageError: the address cannot be used.
            AddressInUse: another process listens there.
        """
        if self._config.metrics_listen:
            self.exporter = Exporter(self._config)

    def close(self) -> None:
        if self.exporter is not None:
            self.exporter.close()

    # --- failures

    def reset_failure(self) -> None:
        """Report failures again: a new epoch has begun."""
        self.epoch_failed = False

    def give_up(self, epoch: int) -> None:
        """Fail the epoch: there was no teacher within the user's time limit."""
        members = [member for member in self._members if not member.ledger.usable]
        names = " and ".join(repr(member.config.service) for member in members)
        error = errors.NoTeacherAvailable(
            f"no teacher of service {names} for {self._config.policy().after_s:g} s:"
            f" {_waiting_for(members)}"
        )
        self.fail(error, epoch)

    def fail(self, error: errors.EdlError, epoch: int | None) -> None:
        """Have the training loop raise `error` in `epoch`; None: in every epoch.

        Of the failures of one epoch, only the first is reported.
        """
        if self.epoch_failed and epoch is not None:
            return
        self.epoch_failed = self.epoch_failed or epoch is not None
        self._channel.send("fatal", epoch=epoch, error=type(error).__name__, text=str(error))

    # --- states

    def request_stats(self, number: int) -> None:
        """Have the next `report_if_due` answer this request of the trainer."""
        self._request = number

    def report_if_due(self, now: float) -> None:
        """Send the reports that are due: periodically, and at once if a core requests it."""
        stats_are_due = self._request != self._answered
        for member in self._members:
            service, state = member.config.service, member.core.model_switch.handoff_state
            if self._handoff_states[service] is not state:
                self._handoff_states[service] = state
                self._channel.send("handoff", service=service, state=to_plain(state))
            if now - member.reported_at >= (
                URGENT_EVERY_S if member.report_due else REPORT_EVERY_S
            ):
                stats_are_due |= member.report_due
                member.report_due, member.reported_at = False, now
                member.roster.report(student_report(member, now))
        if stats_are_due or now - self._stats_at >= STATS_EVERY_S:
            self._stats_at = now
            reports = self._report_to_trainer(now)
            if self.exporter is not None:
                self.exporter.show(self._members, reports, self._batch_delivery, self.calls, now)

    def report_before_batch(self) -> None:
        """Send stats if resends or kinds of labels have changed, so that they precede the batch."""
        current: list[tuple[int, Mapping[str, PublishedKind]]] = [
            (member.ledger.resends, member.core.model_switch.kinds.settled)
            for member in self._members
        ]
        if current != self._sent_before_batch:
            self._sent_before_batch = current
            self._report_to_trainer(time.monotonic())

    def report_story(self, batch: int, now: float) -> None:
        """Send the trainer the recorded events of a batch."""
        lines = [line for member in self._members for line in story(member, batch, now)]
        self._channel.send("story", batch=batch, lines=lines)

    def _report_to_trainer(self, now: float) -> list[pb.StudentReport]:
        """Send the trainer the stats; return the members' reports, which most stats come from."""
        reports = [student_report(member, now) for member in self._members]
        fields = stats_fields(self._members, reports, self._batch_delivery)
        self._answered = self._request
        self._channel.send("stats", request=self._request, **fields)
        return reports


def stats_fields(
    members: Sequence[EnsembleMember],
    reports: Sequence[pb.StudentReport],
    batch_delivery: BatchDelivery,
) -> dict[str, Any]:
    """Return the fields of `ReaderStats` that only the engine knows."""
    stores = [member.label_cache.stats for member in members if member.label_cache is not None]
    states = {member.core.decision.state for member in members}
    return {
        **{
            name: sum(getattr(report, name) for report in reports)
            for name in ("resends", "hedges", "ejections", "want", "needed")
        },
        **{
            name: [value for report in reports for value in getattr(report, name)]
            for name in ("teachers", "ejected", "ejected_for", "stragglers")
        },
        "canaries": sum(member.ledger.named_copies for member in members),
        "dispute": "; ".join(filter(None, (member.dispute for member in members))),
        "ejections_for_lying": sum(
            member.core.teachers.breakers.ejections["lied"] for member in members
        ),
        "volume_bytes": min(report.volume_bytes for report in reports),
        "t_t_s": max(report.t_t_seconds for report in reports),
        "t_s_s": max(report.t_s_seconds for report in reports),
        "samples_per_s": reports[0].samples_per_second,
        "in_flight": [
            [name, len(member.ledger.in_flight_at(name))]
            for member in members
            for name in member.ledger.teachers
        ],
        "served": [
            [name, member.core.stats.served(name)]
            for member in members
            for name in member.ledger.teachers
        ],
        "starved_s": max(report.starved_seconds for report in reports),
        "blocked_s": max(report.blocked_seconds for report in reports),
        "source_wait_s": min(report.source_wait_seconds for report in reports),
        "state": next(state for state in _WORST if state in states),
        "content_id": ", ".join(filter(None, (member.content_id for member in members))),
        "label_kinds": [
            [name, kind] for member in members for name, kind in member.output_kinds.items()
        ],
        "waiting_for": _waiting_for(members),
        "store_hits": sum(store.hits for store in stores),
        "store_misses": sum(store.misses for store in stores),
        "store_dropped": sum(store.dropped for store in stores),
        "store_trouble": next((store.trouble for store in stores if store.trouble), ""),
        "partly_labelled": batch_delivery.delivery.partial,
        "weights": []
        if batch_delivery.mixture is None
        else [*map(list, batch_delivery.mixture.shares.items())],
    }


def _waiting_for(members: Iterable[EnsembleMember]) -> str:
    return "; ".join(filter(None, map(waiting_for, members)))
