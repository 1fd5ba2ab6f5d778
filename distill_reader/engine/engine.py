"""The engine's thread: what the trainer sends goes to the members, what they label goes back.

Everything else (the trainer's messages, rosters, links) posts to its inbox. The `ReaderCore` of
each member decides which rows go where, when to pull or pause, and how many teachers are wanted.
"""

from __future__ import annotations

import time
from functools import partial

from ... import errors
from ...proto.arena import Arena
from ...proto.channel import Channel, Message
from ...proto.shared_buffer import SharedBuffer
from ...scheduler.reader_core import instructions as do
from ...scheduler.reader_core.events import EngineResumed, HandoffState, LoopWaiting, SourceEnded
from ..config import ReaderConfig
from .batch_delivery import BatchDelivery
from .inbox import Inbox
from .member import Member, MemberListener
from .outcomes import Outcome, RequestDone
from .reporting import TrainerReporter
from .requests import Batches
from .tracing import open_timeline

#: Decisions that depend on time alone are looked at so often.
TICK_S = 0.05


class Engine:
    """Labels what lies in `ring`, writing into `labels`, until the trainer's side is gone."""

    def __init__(
        self, config: ReaderConfig, channel: Channel, ring: SharedBuffer, labels: Arena
    ) -> None:
        self._channel = channel
        self._inbox = Inbox()
        self._batches = Batches(config)
        self._timeline = open_timeline(config)
        listener = MemberListener(self._on_settled, self._on_outcome, self._on_failed)
        mixed = config.mixing is not None
        self.members = tuple(
            Member(one, self._inbox, self._batches, ring, labels, listener, mixed=mixed)
            for one in config.members
        )
        self._batch_delivery = batch_delivery = BatchDelivery(
            config,
            channel,
            labels,
            self.members,
            partial(self._on_failed, for_good=False),
            self._on_given_up,
        )
        self._delivery = batch_delivery.delivery
        self._reporter = TrainerReporter(config, channel, self.members, batch_delivery)
        self._labels = labels
        self._pulled = 0  # number of the next batch
        self._allowed = 0
        self._stream_epoch = 0

    def run(self) -> None:
        """Work until the trainer stops the engine or is gone."""
        self._inbox.listen(self._channel, self._on_message)
        try:
            self._reporter.start()
        except errors.EdlError as error:
            self._reporter.fail(error, None)
        for member in self.members:
            member.start()
        while (events := self._inbox.next(TICK_S)) is not None:
            with self._channel.together:
                for event in events:
                    event()
                for event in (self._inbox.next(0.0) or ()) if events else ():
                    event()  # it has come meanwhile: what follows is decided for all at once
                self._decide(time.monotonic())
        if self._timeline is not None:
            self._timeline.close(time.monotonic())
        for member in self.members:
            member.close()
        self._reporter.close()
        self._inbox.close()

    def stop(self) -> None:
        """Let `run` return; may be called by a signal handler."""
        self._inbox.stop()

    # --- the trainer's side

    def _on_message(self, message: Message) -> None:
        for offset in message.get("free", ()):
            self._labels.free(offset)
        if self._timeline is not None:
            self._timeline.on_message(message)
        now = time.monotonic()
        match message["kind"]:
            case "batch":
                self._on_batch(message)
            case "held":
                self._on_held(message)
            case "waiting":
                self._delivery.wait()
                for member in self.members:
                    member.handle(LoopWaiting())
            case "taken":
                self._on_taken(message, now)
            case "ended":
                for member in self.members:
                    member.handle(SourceEnded())
            case "figures":
                self._reporter.request_stats(message["number"])
            case "story":
                self._reporter.report_story(message["batch"], now)
            case "reset":
                self._on_reset(message, now)
            case "resumed":
                self._on_resumed(message, now)

    def _on_batch(self, message: Message) -> None:
        batch = self._batches.add(message)
        self._pulled = batch.number + 1
        self._delivery.queue(batch.number)
        for member in self.members:
            member.queue(batch, message["source_s"])

    def _on_held(self, message: Message) -> None:
        """The trainer was offered a batch with its labels by an engine before this one."""
        batch = self._batches.add(message)
        self._pulled = batch.number + 1
        for member in self.members:
            makers = message["makers"].get(member.config.service, ())
            member.hold(batch, message["labels_nbytes"], makers)
        self._batch_delivery.execute(
            self._delivery.hold(batch.number, released=message["released"])
        )

    def _on_taken(self, message: Message, now: float) -> None:
        number, samples, step_s = message["number"], message["samples"], message["step_s"]
        self._delivery.taken(number, step_s)
        for member in self.members:
            member.taken(number, samples, step_s, now)
        self._batches.pop(number, None)

    def _on_resumed(self, message: Message, now: float) -> None:
        """Told all that the engine before this one knew."""
        self._stream_epoch = message["epoch"]
        self._pulled = message["pulled"]
        self._delivery.wait(waits=message["waiting"])
        legacies = message["legacies"]
        for member in self.members:
            told = legacies.get(member.config.service)
            left = HandoffState() if told is None else HandoffState.from_json(told)
            taken_over = EngineResumed(
                message["data_epoch"], left, message["ended"], message["waiting"]
            )
            member.resume(taken_over, now)

    def _on_reset(self, message: Message, now: float) -> None:
        self._stream_epoch = message["epoch"]
        self._pulled = message["pulled"]
        self._delivery.reset()
        self._batches.clear()
        self._reporter.reset_failure()
        for member in self.members:
            member.reset(message["data_epoch"], now)

    # --- the members

    def _on_settled(
        self,
        member: Member,
        said: do.BatchLabelled | do.GoesUnlabelled | do.LabelsRevoked | do.Poison,
    ) -> None:
        match said:
            case do.BatchLabelled(number) | do.GoesUnlabelled(number):
                self._reporter.report_before_batch()
                if self._timeline is not None:
                    self._timeline.labelled(number)
            case do.LabelsRevoked(number) if self._timeline is not None:
                self._timeline.unlabelled(number)
        self._batch_delivery.execute(self._delivery.heard(member.config.service, said))

    def _on_given_up(self) -> None:
        self._reporter.give_up(self._stream_epoch)

    def _on_outcome(
        self, member: Member, teacher: str, outcome: Outcome, now: float, is_used: bool
    ) -> None:
        if self._timeline is not None:
            self._timeline.on_outcome(teacher, outcome, now)
        if is_used and isinstance(outcome, RequestDone) and self._reporter.exporter is not None:
            self._reporter.exporter.answered(member, teacher, outcome)

    def _on_failed(self, error: errors.EdlError, for_good: bool) -> None:
        self._reporter.fail(error, None if for_good else self._stream_epoch)

    # --- what follows

    def _decide(self, now: float) -> None:
        for member in self.members:
            member.look(now)
        limit = self._pulled + min([member.core.decision.pull for member in self.members])
        if limit > self._allowed:
            self._allowed = limit
            self._channel.send("allow", limit=limit)
        if instructions := self._delivery.look(now):
            self._batch_delivery.execute(instructions)
        self._reporter.report_if_due(now)
        if self._timeline is not None:
            self._timeline.look(self.members, now)
