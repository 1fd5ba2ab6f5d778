"""The trainer's client of its engine: starts it, exchanges messages, restarts it when it dies.

The engine is a separate process (ADR-0021). Its state can be rebuilt from the ring: the next engine
receives every batch that the training loop has not taken. Labels that arrived before the death
remain valid, in the arena of the engine that wrote them. The format of messages may change in any
version, because both processes run the same code, and nothing stores messages.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from math import inf

from ..proto.arena import Arena, Record
from ..proto.channel import Channel, Message
from ..proto.dataclass_json import to_plain
from ..runtime import errors, logs
from ..runtime.supervise import Process, drop_fd_on_fork, python_command, start
from .batch_stream import BatchLabels, BatchStream, RingBatch, StreamSnapshot
from .calls import CLOSED, Calls, PendingCall
from .config import ReaderConfig
from .ring import Ring, ViewTracker
from .stats import ENGINE_COUNTERS

log = logging.getLogger(__name__)

#: An engine that dies this often within `DEATHS_WINDOW_S` is not started again.
MAX_DEATHS = 5
DEATHS_WINDOW_S = 60.0
#: Seconds that the engine has at the end to release its teachers.
STOP_GRACE_S = 4.0
#: Batches that follow each other within this time count as announced back to back.
SOON_S = 0.002
#: Timeout of a requested reply. A healthy engine takes 1 ms, but a new one needs seconds to start.
REPLY_TIMEOUT_S = 10.0
#: A caller of `_send` sends up to this many messages itself: a socket with room takes them at once.
MAX_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class EngineInstance:
    """One engine: its process, the channel to it, and the arena of its labels with their views."""

    process: Process
    channel: Channel
    labels: Arena
    tracker: ViewTracker


class EngineClient:
    """Starts an engine for `stream` and `ring`, and keeps one running until `close`.

    Args:
        config: sent to each engine.
        stream: receives the engine's messages about batches of the source.
        ring: holds the batches; the engine maps it.
        on_stats: called in the receiving thread after each update of `stats`.
        later: runs a function soon, in another thread than the caller's.

    Attributes:
        stats: the latest stats that an engine sent.
        restarts: engines started after the first.
        calls: the calls that wait for labels.
        on_epoch_due: called in the receiving thread when teachers of another content (model and
            preprocessing) wait for the next epoch.
        numbering: lock, held from the numbering of a batch until the batch is announced, because an
            engine expects growing numbers.

    Raises:
        OSError, RuntimeError: the system refuses memory, a descriptor, a process or a thread.
    """

    def __init__(
        self,
        config: ReaderConfig,
        stream: BatchStream,
        ring: Ring,
        on_stats: Callable[[], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self.stats: Message = {}
        self.restarts = 0
        self._config = config
        self._stream = stream
        self._ring = ring
        self._on_stats = on_stats
        self.on_epoch_due: Callable[[], None] | None = None
        self.calls = Calls(
            config.buffer_bytes, lambda: self.stats.get("waiting_for", ""), self._cancel
        )
        # Also held while a new engine starts: no batch is announced meanwhile.
        self.numbering = self._lock = threading.RLock()
        self._handoff_states: dict[str, Message] = {}  # for the next engine, by service
        self._closing = False
        self._ended = False  # no engine runs any more, and none will
        self._reply_arrived = threading.Condition()
        self._stats_requested = self._stats_received = 0  # numbers of the latest requests for stats
        self._story: tuple[int, list[str]] = (-1, [])  # batch, lines
        self._counted_before: Message = {}  # counters of earlier engines
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._ending: errors.EdlError | None = None  # why the engine ends, as it has reported
        self._later = later
        #: Messages in order, each with the engine that it is for; later engines do not get it.
        self._unsent: deque[tuple[EngineInstance, Message]] = deque()
        self._sequence = itertools.count()  # numbers the messages in `_unsent`
        self._is_send_scheduled = False
        self._announced_at = -inf  # time of the latest announcement; -inf: none is expected soon
        self._send_lock = threading.Lock()  # keeps messages in order
        self._engine = self._start()  # replaced as a whole
        self._receiver = threading.Thread(
            target=self._receive, name="edl-reader-receiver", daemon=True
        )
        try:
            self._receiver.start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the engine that runs now."""
        return self._engine.process.pid

    def announce(self, ring_batch: RingBatch, epoch: int) -> None:
        """Tell the engine of a batch in the ring; no effect if `epoch` was left."""
        with self._lock:
            if self._stream.epoch == epoch:
                self._announced_at = time.monotonic()
                self._send(self._announcement(ring_batch))

    def call(self, call: PendingCall) -> None:
        """Number a call, and tell the engine of it.

        Raises:
            ProcessFailed: the system refuses a thread.
            EdlError: the engine labels nothing any more; the error says why.
        """
        with self._lock:
            call.number = self._stream.next_number()
            self.calls.add(call)
            self._send(self._announcement(call))

    def expect_no_announcement(self) -> None:
        """Send the messages that wait for the next announcement, because pulling has paused."""
        self._announced_at = -inf
        if self._unsent:
            self._send()

    def source_ended(self, epoch: int) -> None:
        """Tell the engine that `epoch` has no more batches."""
        with self._lock:
            self._announced_at = -inf
            if self._stream.epoch == epoch:
                self._send({"kind": "ended"})

    def waiting(self) -> None:
        """Tell the engine that the training loop waits for its next batch."""
        self._send({"kind": "waiting", "at": time.monotonic()})

    def taken(self, number: int, samples: int, step_s: float | None) -> None:
        """Tell the engine that the training loop has batch `number` of `samples` rows.

        Never blocks. While batches are announced back to back, the message is sent with the next
        announcement; otherwise another thread sends it. If a new engine starts before that, the
        message is dropped: the new engine does not know the batch, which has left the stream.

        Args:
            number: number of the batch.
            samples: its rows.
            step_s: seconds that the training loop worked on the previous batch; None: unknown.
        """
        at = time.monotonic()
        message = {"number": number, "samples": samples, "step_s": step_s, "at": at}
        self._unsent.append((self._engine, {"kind": "taken", **message}))
        if at - self._announced_at > SOON_S:
            self._send_later()

    def reset(self, epoch: int, data_epoch: int, pulled: int) -> None:
        """Tell the engine to forget every batch, then announce the waiting calls to it again.

        Args:
            epoch: number of the stream's epoch that begins.
            data_epoch: as in `BatchStream`.
            pulled: batches that came from the source, over all epochs.
        """
        with self._lock:  # after this, no batch of an older epoch is announced
            message = {"kind": "reset", "epoch": epoch, "data_epoch": data_epoch, "pulled": pulled}
            self._send(message, *self._repeat_calls())

    def request_stats(self) -> None:
        """Request stats that include everything sent so far; see `requested_stats`."""
        with self._reply_arrived:
            self._stats_requested += 1
        self._send({"kind": "stats_request", "number": self._stats_requested})

    def requested_stats(self) -> Message:
        """Wait for the stats that were requested last.

        Returns older ones if the engine hangs, which is logged. It also returns older ones if no
        engine runs any more, or if the caller is a callback of a call.
        """
        with self._reply_arrived:
            number = self._stats_requested
            if not self._await_reply(lambda: self._stats_received >= number):
                self._stats_received = number  # do not wait for them again
                log.warning(
                    "the reader's engine has not answered for %g s: its statistics are older",
                    REPLY_TIMEOUT_S,
                )
            return self.stats

    def story(self, batch: int) -> list[str]:
        """Return the engine's record of a batch, one line per event or action.

        Empty if nothing was recorded, or if no answer came.
        """
        self._send({"kind": "story", "batch": batch})
        with self._reply_arrived:
            self._await_reply(lambda: self._story[0] == batch)
            (number, lines), self._story = self._story, (-1, [])
            return lines if number == batch else []

    def _await_reply(self, arrived: Callable[[], bool]) -> bool:
        """Wait for a reply unless none can come; returns False if the engine hangs."""
        if self.calls.is_in_callback:  # this may be the thread that receives replies
            return True
        return self._reply_arrived.wait_for(lambda: arrived() or self._ended, REPLY_TIMEOUT_S)

    def close(self) -> None:
        """End the engine and the receiving thread; bounded by a few seconds."""
        self._closing = True
        self.calls.fail(errors.UsageError(CLOSED))
        with self._lock:
            if self._engine.channel.has_room:  # else it hangs, and is killed
                self._engine.channel.send("stop")
            self._engine.process.stop(STOP_GRACE_S)
            self._engine.channel.close()
            self._engine.labels.close()
        if self._receiver.is_alive() and self._receiver is not threading.current_thread():
            self._receiver.join(STOP_GRACE_S)

    # --- the engine's process

    def _start(self) -> EngineInstance:
        with ExitStack() as undo:
            labels = undo.enter_context(closing(Arena.create()))
            channel, fd = Channel.pair()
            undo.callback(channel.close)
            for end in (channel.fileno(), fd):  # a concurrently forked worker must not inherit it
                drop_fd_on_fork(end)
            fds = (fd, self._ring.arena.fd, labels.fd)
            try:
                process = start(
                    python_command("engine", "edl.distill_reader.engine", *fds, pass_fds=fds),
                    echo=logs.child_log_relay(),
                )
            finally:
                os.close(fd)
            undo.pop_all()
        channel.send("start", config=to_plain(self._config))
        return EngineInstance(process, channel, labels, ViewTracker(labels))

    def _restart(self) -> None:
        # The channel sends all messages at the end, when the locks are released: a starting engine
        # does not read for a while, so sending may block.
        with ExitStack() as at_the_end, self._lock:
            old = self._engine
            old.process.stop(0.0)
            old.channel.close()
            if self._closing:
                return
            log.warning("the reader's engine ended, starting another: %s", self._exit_report())
            new = self._start()
            at_the_end.enter_context(new.channel.together)
            stream = self._stream
            # The snapshot locks the stream: later actions of the training loop are sent after this.
            with stream.snapshot() as snapshot:
                new.channel.send_all(
                    [self._handover(batch, snapshot) for batch in snapshot.batches]
                )
                new.channel.send(
                    "resumed",
                    epoch=stream.epoch,
                    data_epoch=stream.data_epoch,
                    handoff_states=self._handoff_states,
                    pulled=stream.pulled,
                    ended=snapshot.ended,
                    waiting=snapshot.waiting,
                )
                new.channel.send_all(self._repeat_calls())
                new.channel.send("stats_request", number=self._stats_requested)
                self._engine, self._ending = new, None
            self._counted_before = {name: self.stats.get(name, 0) for name in ENGINE_COUNTERS}
            self.restarts += 1  # after `_engine` is set: who sees the new count sees the new `pid`
            old.labels.close()

    def _announcement(self, batch: RingBatch | PendingCall) -> Message:
        """Make the message about a batch to be labelled: its size, and where its fields are."""
        record, parts = batch.record, batch.parts
        fields = [(key, record.arrays[index]) for key, index in parts.fields]
        return {
            "kind": "batch" if isinstance(batch, RingBatch) else "call",
            "at": time.monotonic(),
            "number": batch.number,
            "nbytes": record.nbytes,
            "samples": parts.samples,
            "fields": fields,
            "generation": self._ring.arena.generation(fields[0][1].offset) if fields else 0,
            "source_s": batch.source_s if isinstance(batch, RingBatch) else 0.0,
        }

    def _repeat_calls(self) -> list[Message]:
        """Make the messages about the calls that wait, for an engine that does not know them."""
        calls = self.calls.renumber(self._stream.next_number)
        return [self._announcement(call) for call in calls]

    def _cancel(self, number: int, why: str) -> None:
        """Tell the engine that nobody waits for the labels of a call any more.

        Another thread sends the message, because it may have to wait until the call is announced.
        """
        self._later(partial(self._send_locked, {"kind": "cancel", "number": number, "why": why}))

    def _send_locked(self, message: Message) -> None:
        with self._lock:
            self._send(message)

    def _handover(self, ring_batch: RingBatch, snapshot: StreamSnapshot) -> Message:
        """Make the message to a new engine about a batch of the stream, labelled or not."""
        message = self._announcement(ring_batch)
        if (outcome := snapshot.outcomes.get(ring_batch.number)) is None:
            return message
        labels = outcome if isinstance(outcome, BatchLabels) else BatchLabels({})
        return {
            **message,
            "kind": "restored",
            "released": ring_batch.number in snapshot.released,
            "labels_nbytes": 0 if labels.record is None else labels.record.nbytes,
            "makers": labels.makers,
        }

    def _exit_report(self) -> str:
        process = self._engine.process
        if self._ending is not None:
            return f"{type(self._ending).__name__}: {self._ending}"
        return " | ".join(process.tail(3)) or f"exit code {process.returncode}"

    # --- messages of engines

    def _receive(self) -> None:
        try:
            while not self._closing:
                while (message := self._engine.channel.receive()) is not None:
                    self._on_message(message)
                    if not self._unsent or self._is_send_scheduled:
                        continue
                    if time.monotonic() - self._announced_at > SOON_S:  # the source is slow
                        self._send()
                if self._closing:
                    return
                self._deaths.append(time.monotonic())
                if len(self._deaths) == MAX_DEATHS and self._span_of_deaths() < DEATHS_WINDOW_S:
                    raise self._ending or errors.EngineLost(
                        f"the reader's engine died {MAX_DEATHS} times within"
                        f" {self._span_of_deaths():.0f} s, the last time with:"
                        f" {self._exit_report()}"
                    )
                self._restart()
        except errors.EdlError as error:
            self._fail(error)
        except Exception as error:  # in any case, the training loop must not wait for ever
            what = f"{type(error).__name__}: {error}"
            self._fail(errors.EngineLost(f"the reader lost its engine: {what}"))
        finally:
            with self._reply_arrived:
                self._ended = True
                self._reply_arrived.notify_all()

    def _fail(self, error: errors.EdlError) -> None:
        self._stream.fail(error)
        self.calls.fail(error)

    def _span_of_deaths(self) -> float:
        return self._deaths[-1] - self._deaths[0]

    def _on_message(self, message: Message) -> None:
        match message["kind"]:
            case "allow":
                self._stream.allow(message["limit"])
            case "labelled":
                labels = read_labels(message, self._engine.tracker)
                if labels.record is not None:
                    refs = zip(message["names"], labels.record.arrays, strict=True)
                    self.calls.latest_labels = dict(refs)
                if not self._stream.set_outcome(message["number"], labels):
                    self.calls.answer(message["number"], labels.arrays)
            case "withdraw":
                self._stream.withdraw(message["number"])
            case "release":
                self._stream.release(message["numbers"])
            case "poison":
                poison = errors.PoisonBatch(message["text"])
                if not self._stream.set_outcome(message["number"], poison):
                    self.calls.answer(message["number"], poison)
            case "call_failed":
                error = getattr(errors, message["error"])(message["text"])
                self.calls.answer(message["number"], error)
            case "stats":
                for name, count in self._counted_before.items():
                    message[name] = message.get(name, 0) + count
                self._warn_of_store(message)
                with self._reply_arrived:
                    self.stats = message
                    self._stats_received = max(self._stats_received, message["request"])
                    self._reply_arrived.notify_all()
                self._on_stats()
            case "story":
                with self._reply_arrived:
                    self._story = (message["batch"], message["lines"])
                    self._reply_arrived.notify_all()
            case "epoch_due":
                if self.on_epoch_due is not None:
                    self.on_epoch_due()
            case "handoff":
                self._handoff_states[message["service"]] = message["state"]
            case "ending":
                self._ending = getattr(errors, message["error"])(message["text"])
            case "fatal":
                error = getattr(errors, message["error"])(message["text"])
                if message["epoch"] is None:
                    self._fail(error)
                else:
                    self._stream.fail(error, message["epoch"])
            case kind:
                raise errors.WireError(f"the engine sent a message of unknown kind {kind!r}")

    def _warn_of_store(self, stats: Message) -> None:
        """Log when the engine reports that the label store fails, or works again."""
        before, now = self.stats.get("store_trouble", ""), stats.get("store_trouble", "")
        if now and not before:
            log.warning("%s; training goes on", now)
        elif before and not now:
            dropped = stats["store_dropped"]
            log.info("the label store can be used again; labels not kept: %d", dropped)

    def _send(self, *messages: Message) -> None:
        """Send `messages` after those that wait.

        Never blocks, so callers may hold locks: another thread sends them if there are many, or if
        the channel is full because the engine hangs.
        """
        engine = self._engine
        self._unsent.extend([(engine, message) for message in messages])
        if len(self._unsent) <= MAX_AT_ONCE and engine.channel.has_room:
            self._send_unsent()
        else:
            self._send_later()

    def _send_later(self) -> None:
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            self._later(self._send_unsent)

    def _send_unsent(self) -> None:
        """Send the queued messages, and the offsets of labels whose memory is free."""
        with self._send_lock:
            self._is_send_scheduled = False  # before the queue is read: nothing stays unsent
            unsent = [*self._unsent]
            engine = self._engine
            messages = []
            for receiver, message in unsent:
                if "sequence" not in message:
                    message["sequence"] = next(self._sequence)
                if receiver is engine:
                    messages.append(message)
            if messages:
                messages[0] = {**messages[0], "free": engine.tracker.released()}
                engine.channel.send_all(messages)
            for _ in unsent:  # after a Ctrl-C here, the engine ignores messages that it gets again
                self._unsent.popleft()


def read_labels(message: Message, tracker: ViewTracker) -> BatchLabels:
    """Decode the engine's message about a labelled batch."""
    names = message["names"]
    if message["record"] is None:
        return BatchLabels(dict.fromkeys(names))
    record = Record.from_json(message["record"])
    arrays = dict(zip(names, tracker.views(record), strict=True))
    return BatchLabels(arrays, record, message["makers"])
