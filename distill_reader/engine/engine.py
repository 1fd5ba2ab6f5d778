"""The engine: passes the trainer's batches to its members, and their labels to the trainer.

A member has batches labelled by the teachers of one service. Its `ReaderCore` decides which rows go
to which teacher, when to pull or pause, and how many teachers are wanted. A *call* is a batch that
a `TeacherPool` wants labelled; it is not part of the training loop's stream. The engine works in
one thread. The threads of rosters, links and the label cache post tasks to its inbox.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ...proto.arena import Arena
from ...proto.channel import Channel, Message
from ...proto.dataclass_json import from_plain
from ...proto.shared_buffer import SharedBuffer
from ...runtime import errors
from ...scheduler.reader_core import instructions as do
from ...scheduler.reader_core.events import (
    EngineResumed,
    HandoffState,
    LoopWaiting,
    SourceEnded,
)
from ..config import ReaderConfig
from ..trace_file import TraceFile
from .batch_delivery import BatchDelivery
from .ensemble_member import EnsembleMember, MemberListener
from .inbox import Inbox
from .reporting import TrainerReporter
from .requests import KnownBatches
from .teacher_requests import Outcome, RequestDone
from .tracing import Timeline

#: Interval of decisions that depend on time alone.
TICK_S = 0.05
#: Minimum interval of decisions while sockets only transfer parts of messages.
BUSY_TICK_S = 0.01


class Engine:
    """Labels the batches in the ring, until the trainer ends.

    Args:
        config: settings of the reader.
        channel: channel to the trainer.
        ring: holds the batches; the trainer writes it.
        labels: arena for the labels.

    Attributes:
        members: one member for each service.
        batch_delivery: delivers the batches of the source.
    """

    def __init__(
        self, config: ReaderConfig, channel: Channel, ring: SharedBuffer, labels: Arena
    ) -> None:
        self._channel = channel
        self._inbox = Inbox()
        self._batches = KnownBatches(config)
        self._timeline: Timeline | None = None
        if config.trace:
            self._timeline = Timeline(TraceFile(Path(config.trace.path), config.trace.max_bytes))
        listener = MemberListener(
            self._on_label_change,
            self._on_outcome,
            self._on_failed,
            self._on_call_failed,
            self._on_epoch_due,
        )
        mixed = config.ensemble is not None
        self.members = tuple(
            EnsembleMember(member, self._inbox, self._batches, ring, labels, listener, mixed=mixed)
            for member in config.members
        )
        self.batch_delivery = batch_delivery = BatchDelivery(
            config,
            channel,
            labels,
            self.members,
            lambda _, error: self._on_failed(error, in_every_epoch=False),
            self._on_released,
            gave_up=self._on_given_up,
        )
        self._call_delivery = BatchDelivery(
            config,
            channel,
            labels,
            self.members,
            self._on_call_failed,
            self._on_calls_ended,
            loop_delivery=batch_delivery,
        )
        self._reporter = TrainerReporter(config, channel, self.members, batch_delivery)
        self._labels = labels
        self._without_labels: dict[int, str] = {}  # outcome of calls without labels, by number
        self._pulled = 0  # batches of the source, over all epochs
        self._allowed = 0  # batches that the trainer may pull, over all epochs
        self._stream_epoch = 0
        self._epoch_due_sent_in = -1  # stream epoch in which "epoch_due" was sent last
        self._sequence = -1  # of the latest message with a sequence number

    def run(self) -> None:
        """Work until the trainer sends "stop" or ends, or `stop` is called."""
        self._inbox.listen(self._channel, self.handle)
        try:
            self._reporter.start()
        except errors.EdlError as error:
            self._reporter.fail(error, None)
        for member in self.members:
            member.start()
        decided_at = 0.0
        while (tasks := self._inbox.next(TICK_S)) is not None:
            now = time.monotonic()
            if not tasks and now - decided_at < BUSY_TICK_S:
                continue  # a socket has sent or received a part of a message
            with self._channel.together:
                for task in tasks:
                    task()
                for task in (self._inbox.next(0.0) or ()) if tasks else ():
                    task()  # arrived meanwhile: make one decision after all tasks
                decided_at = time.monotonic()
                self.decide(decided_at)
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

    def handle(self, message: Message) -> None:
        """Handle a message of the trainer."""
        for offset in message.get("free", ()):
            self._labels.free(offset)
        if (sequence := message.get("sequence")) is not None:
            if sequence <= self._sequence:  # repeated after a Ctrl-C in the trainer
                return
            self._sequence = sequence
        if self._timeline is not None:
            self._timeline.on_message(message)
        now = time.monotonic()
        match message["kind"]:
            case "batch" | "call":
                self._on_batch(message, now)
            case "cancel":
                self._drop_call(message["number"], message["why"])
                # Release the batch now: if its labels were revoked before the release, teachers
                # would label it again.
                self._call_delivery.execute(self._call_delivery.delivery.release())
            case "restored":
                self._on_restored(message)
            case "waiting":
                self.batch_delivery.delivery.wait()
                for member in self.members:
                    member.handle(LoopWaiting())
            case "taken":
                self._on_taken(message, now)
            case "ended":
                for member in self.members:
                    member.handle(SourceEnded())
            case "stats_request":
                self._reporter.request_stats(message["number"])
            case "story":
                self._reporter.report_story(message["batch"], now)
            case "reset":
                self._on_reset(message, now)
            case "resumed":
                self._on_resumed(message, now)

    def _on_batch(self, message: Message, now: float) -> None:
        """Have a batch of the source or of a call labelled."""
        batch = self._batches.add(message)
        if batch.is_call:
            self._call_delivery.delivery.queue(batch.number)
        else:
            self._pulled += 1
            self.batch_delivery.delivery.queue(batch.number)
        for member in self.members:
            member.queue(batch, message["source_s"], now)

    def _drop_call(self, number: int, outcome: str) -> None:
        """Stop labelling the batch of a call that was cancelled, is late, or has failed."""
        if number in self._batches:
            self._without_labels[number] = outcome
            for member in self.members:
                member.drop_call(number)

    def _on_restored(self, message: Message) -> None:
        """Add a batch with an outcome that the trainer got from an earlier engine."""
        batch = self._batches.add(message)
        for member in self.members:
            makers = message["makers"].get(member.config.service, ())
            member.restore(batch, message["labels_nbytes"], makers)
        self.batch_delivery.execute(
            self.batch_delivery.delivery.restore(batch.number, released=message["released"])
        )

    def _on_taken(self, message: Message, now: float) -> None:
        number, samples, step_s = message["number"], message["samples"], message["step_s"]
        if number not in self._batches:
            return  # reported again: a Ctrl-C interrupted the loop after it took the batch
        self.batch_delivery.delivery.taken(number, step_s)
        for member in self.members:
            member.taken(number, samples, step_s, now)
        del self._batches[number]

    def _on_resumed(self, message: Message, now: float) -> None:
        """Continue after an earlier engine; its batches were announced before this message."""
        self._stream_epoch = message["epoch"]
        self._pulled = message["pulled"]
        self.batch_delivery.delivery.wait(waits=message["waiting"])
        handoff_states = message["handoff_states"]
        for member in self.members:
            plain = handoff_states.get(member.config.service)
            state = HandoffState() if plain is None else from_plain(HandoffState, plain)
            resumed = EngineResumed(
                message["data_epoch"], state, message["ended"], message["waiting"]
            )
            member.resume(resumed, now)

    def _on_reset(self, message: Message, now: float) -> None:
        self._stream_epoch = message["epoch"]
        self._pulled = message["pulled"]
        self.batch_delivery.delivery.reset()
        self._call_delivery.delivery.reset()  # the trainer repeats the calls that it waits for
        self._batches.clear()
        self._without_labels.clear()
        self._reporter.reset_failure()
        for member in self.members:
            member.reset(message["data_epoch"], now)

    # --- the members

    def _on_label_change(self, member: EnsembleMember, change: do.LabelChange) -> None:
        match change:
            case do.BatchLabelled(number) | do.GoesUnlabelled(number):
                self._reporter.report_before_batch()
                if self._timeline is not None:
                    self._timeline.batches.labelled(number)
            case do.LabelsRevoked(number) if self._timeline is not None:
                self._timeline.batches.unlabelled(number)
        batch, delivery = self._batches.get(change.batch), self.batch_delivery
        if batch is not None and batch.is_call:
            delivery = self._call_delivery
            if isinstance(change, do.Poison):
                self._without_labels[batch.number] = "failed"
            elif isinstance(change, do.LabelsRevoked):
                self._without_labels.pop(batch.number, None)
        delivery.execute(delivery.delivery.handle(member.config.service, change))

    def _on_released(self, numbers: Sequence[int]) -> None:
        self._channel.send("release", numbers=numbers)

    def _on_calls_ended(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            samples = self._batches.pop(number).samples
            outcome = self._without_labels.pop(number, "answered")
            self._reporter.calls[outcome] += 1
            if self._timeline is not None:
                self._timeline.batches.ended(number, time.monotonic(), outcome)
            self._call_delivery.delivery.taken(number, None)
            for member in self.members:
                member.end_call(number, samples if outcome == "answered" else 0)

    def _on_call_failed(self, number: int, error: errors.EdlError) -> None:
        self._channel.send(
            "call_failed", number=number, error=type(error).__name__, text=str(error)
        )
        self._drop_call(number, "failed")

    def _on_given_up(self) -> None:
        self._reporter.give_up(self._stream_epoch)

    def _on_outcome(
        self, member: EnsembleMember, teacher: str, outcome: Outcome, now: float, is_valid: bool
    ) -> None:
        if self._timeline is not None:
            self._timeline.on_outcome(teacher, outcome, now)
        if is_valid and isinstance(outcome, RequestDone) and self._reporter.exporter is not None:
            self._reporter.exporter.answered(member, teacher, outcome)

    def _on_failed(self, error: errors.EdlError, in_every_epoch: bool) -> None:
        self.batch_delivery.delivery.wait(waits=False)  # the loop gets the error
        self._reporter.fail(error, None if in_every_epoch else self._stream_epoch)

    def _on_epoch_due(self) -> None:
        if self._epoch_due_sent_in != self._stream_epoch:  # else it was sent for another member
            self._epoch_due_sent_in = self._stream_epoch
            self._channel.send("epoch_due")

    # --- decisions

    def decide(self, now: float) -> None:
        """Make the decisions that follow from events and time; send the trainer those for it."""
        for member in self.members:
            member.tick(now)
        limit = self._pulled + min([member.core.decision.pull for member in self.members])
        if limit > self._allowed and not self._reporter.epoch_failed:
            self._allowed = limit
            self._channel.send("allow", limit=limit)
        if instructions := self.batch_delivery.delivery.tick(now):
            self.batch_delivery.execute(instructions)
        if instructions := self._call_delivery.delivery.tick(now):
            self._call_delivery.execute(instructions)
        self._reporter.report_if_due(now)
        if self._timeline is not None:
            self._timeline.tick(self.members, now)
