"""The trainer's client of its engine: starts it, exchanges messages, restarts it when it dies.

The engine is a process of its own (ADR-0021), whose state can be rebuilt from the ring: the next
engine receives every batch that still waits for labels. Labels that arrived before stay valid, in
the arena of the engine that wrote them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import inf

from .. import errors, logs
from ..proto.arena import Arena, Record
from ..proto.channel import Channel, Message
from ..supervise import Process, own_fd, python_command, start
from .batches import BatchLabels, RingBatch
from .config import ReaderConfig
from .ring import ArrayLeases, Ring
from .stream import Stream, StreamSnapshot

log = logging.getLogger(__name__)

#: An engine that dies this often within `DEATHS_WINDOW_S` is not started again.
MAX_DEATHS = 5
DEATHS_WINDOW_S = 60.0
#: Time for the engine to release its teachers.
STOP_GRACE_S = 4.0
#: Batches closer than this are announced back to back.
SOON_S = 0.002
#: Timeout of requested stats; a healthy engine takes 1 ms.
FIGURES_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineInstance:
    """One engine: its process, the channel to it, and the memory that it writes labels into."""

    process: Process
    channel: Channel
    labels: Arena
    leases: ArrayLeases


class EngineClient:
    """Starts an engine for `stream` and `ring`, and keeps one running until `close`.

    Attributes:
        stats: the latest stats that an engine sent.
        restarts: engines started after the first.
    """

    def __init__(
        self,
        config: ReaderConfig,
        stream: Stream,
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
        self._lock = threading.Lock()  # orders "announce a batch" against "start a new engine"
        self._announced = -1
        self._legacies: dict[str, Message] = {}  # handoff state for the next engine, by service
        self._closing = False
        self._figures = threading.Condition()
        self._figures_asked = self._figures_received = 0  # times
        self._story: tuple[int, list[str]] = (-1, [])  # of which batch
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._later = later
        self._unsent: deque[Message] = deque()  # batches that the training loop took
        self._taken = -1  # number of the latest of these
        self._asked = False  # sending is scheduled
        self._pulls_at = -inf  # when a batch was announced, if the next one is expected
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

    def announce(self, pulled: RingBatch, epoch: int) -> None:
        """Send the engine a batch in the ring; each batch once per engine."""
        with self._lock:
            if self._stream.epoch == epoch and pulled.number > self._announced:
                self._pulls_at = time.monotonic()
                self._send(self._news_of(pulled))

    def rests(self) -> None:
        """No batch is announced until the engine allows another one, or the epoch is over."""
        self._pulls_at = -inf
        if self._unsent:
            self._send()

    def source_ended(self, epoch: int) -> None:
        """The source has no more batches for `epoch`."""
        with self._lock:
            self._pulls_at = -inf
            if self._stream.epoch == epoch:
                self._send({"kind": "ended"})

    def waiting(self) -> None:
        """The training loop waits for its next batch."""
        self._send({"kind": "waiting", "at": time.monotonic()})

    def taken(self, number: int, samples: int, step_s: float | None) -> None:
        """The training loop has batch `number`, after `step_s` seconds of work on the last one.

        Does not block: another thread sends it, or the next message carries it; while batches are
        announced back to back, that is the next announcement. An engine that starts meanwhile does
        not receive the batch: the stream knows that it was taken.
        """
        at = time.monotonic()
        if number != self._taken:  # else it is queued already, and a Ctrl-C came
            self._taken = number
            self._unsent.append(
                {"kind": "taken", "number": number, "samples": samples, "step_s": step_s, "at": at}
            )
        if not self._asked and at - self._pulls_at > SOON_S:
            self._asked = True
            self._later(self._send)

    def reset(self, epoch: int, data_epoch: int, pulled: int) -> None:
        """Forget every batch: `epoch` begins, and its first batch will have the number `pulled`.

        `data_epoch` counts the epochs that were begun over the source, and not only left.
        """
        with self._lock:  # behind this nothing of an older epoch is announced
            news = {"kind": "reset", "epoch": epoch, "data_epoch": data_epoch, "pulled": pulled}
            self._send({**news, "free": self._engine.leases.over()})

    def ask_for_figures(self) -> None:
        """Request stats that include everything sent so far."""
        with self._figures:
            self._figures_asked += 1
        self._send({"kind": "figures", "number": self._figures_asked})

    def figures(self) -> Message:
        """The requested stats, or after a timeout the latest."""
        with self._figures:
            asked = self._figures_asked
            told = self._figures.wait_for(lambda: self._figures_received >= asked, FIGURES_S)
            if not told:  # do not wait for them again
                self._figures_received = asked
            return self.stats

    def story(self, batch: int) -> list[str]:
        """The engine's recorded events of a batch, a line each; none after a timeout."""
        self._send({"kind": "story", "batch": batch})
        with self._figures:
            self._figures.wait_for(lambda: self._story[0] == batch, FIGURES_S)
            told, self._story = self._story, (-1, [])
            return told[1] if told[0] == batch else []

    def close(self) -> None:
        """End the engine and the receiving thread; bounded by a few seconds."""
        self._closing = True
        with self._lock:
            self._engine.channel.send("stop")
            self._engine.process.stop(STOP_GRACE_S)
            self._engine.channel.close()
            self._engine.labels.close()
        if self._receiver.is_alive() and self._receiver is not threading.current_thread():
            self._receiver.join(STOP_GRACE_S)

    # --- one engine's life

    def _start(self) -> EngineInstance:
        with ExitStack() as undo:
            labels = undo.enter_context(closing(Arena.create()))
            channel, fd = Channel.pair()
            undo.callback(channel.close)
            for end in (channel.fileno(), fd):  # a worker forked just now would keep either open
                own_fd(end)
            fds = (fd, self._ring.arena.fd, labels.fd)
            try:
                process = start(
                    python_command("engine", "edl.distill_reader.engine", *fds, pass_fds=fds),
                    echo=logs.relay(),
                )
            finally:
                os.close(fd)
            undo.pop_all()
        channel.send("start", config=self._config.to_json())
        return EngineInstance(process, channel, labels, ArrayLeases(labels))

    def _restart(self) -> None:
        # Sent at the end, without the locks: a starting process does not read at once.
        with ExitStack() as at_the_end, self._lock:
            old = self._engine
            old.process.stop(0.0)
            old.channel.close()
            if self._closing:
                return
            log.warning("the reader's engine ended, starting another: %s", self._last_words())
            new = self._start()
            at_the_end.enter_context(new.channel.together)
            self.restarts += 1
            self._announced = -1
            with (
                self._stream.snapshot() as snapshot
            ):  # so what the training loop does next comes behind
                new.channel.send_all([self._found(one, snapshot) for one in snapshot.batches])
                new.channel.send(
                    "resumed",
                    epoch=snapshot.epoch,
                    data_epoch=snapshot.data_epoch,
                    legacies=self._legacies,
                    pulled=snapshot.pulled,
                    ended=snapshot.ended,
                    waiting=snapshot.waiting,
                )
                new.channel.send("figures", number=self._figures_asked)
                self._engine = new
            old.labels.close()

    def _news_of(self, pulled: RingBatch) -> Message:
        self._announced = pulled.number
        at, source_s = time.monotonic(), pulled.source_s
        return {"kind": "batch", "source_s": source_s, "at": at, **self._described(pulled)}

    def _found(self, pulled: RingBatch, snapshot: StreamSnapshot) -> Message:
        """The message to a new engine about a batch: to be labelled, or its outcome and makers."""
        if (outcome := snapshot.outcomes.get(pulled.number)) is None:
            return self._news_of(pulled)
        self._announced = pulled.number
        labels = outcome if isinstance(outcome, BatchLabels) else BatchLabels({})
        return {
            "kind": "held",
            "released": pulled.number in snapshot.released,
            "labels_nbytes": 0 if labels.record is None else labels.record.nbytes,
            "makers": labels.makers,
            **self._described(pulled),
        }

    def _described(self, pulled: RingBatch) -> Message:
        """A batch in the ring, and the location of its fields."""
        refs = pulled.record.arrays
        places = [(key, refs[index]) for key, index in pulled.parts.fields]
        return {
            "number": pulled.number,
            "nbytes": pulled.record.nbytes,
            "samples": pulled.parts.samples,
            "fields": places,
            "generation": self._ring.arena.generation(places[0][1].offset) if places else 0,
        }

    def _last_words(self) -> str:
        process = self._engine.process
        return " | ".join(process.tail(3)) or f"exit code {process.returncode}"

    # --- messages of engines

    def _receive(self) -> None:
        try:
            while not self._closing:
                while (message := self._engine.channel.receive()) is not None:
                    self._on_message(message)
                    if self._unsent and not self._asked and self._is_late():
                        self._send()
                if self._closing:
                    return
                self._deaths.append(time.monotonic())
                if len(self._deaths) == MAX_DEATHS and self._span_of_deaths() < DEATHS_WINDOW_S:
                    raise errors.EngineLost(
                        f"the reader's engine died {MAX_DEATHS} times within"
                        f" {self._span_of_deaths():.0f} s; its last words: {self._last_words()}"
                    )
                self._restart()
        except errors.EdlError as error:
            self._stream.fail(error)
        except Exception as error:  # in any case, the training loop must not wait for ever
            what = f"{type(error).__name__}: {error}"
            self._stream.fail(errors.EngineLost(f"the reader lost its engine: {what}"))

    def _is_late(self) -> bool:
        """Whether the expected announcement is overdue because the source is slow."""
        return time.monotonic() - self._pulls_at > SOON_S

    def _span_of_deaths(self) -> float:
        return self._deaths[-1] - self._deaths[0]

    def _on_message(self, message: Message) -> None:
        match message["kind"]:
            case "allow":
                self._stream.allow(message["limit"])
            case "labelled":
                labels = read_labels(message, self._engine.leases)
                self._stream.settle(message["number"], labels)
            case "withdraw":
                self._stream.withdraw(message["number"])
            case "release":
                self._stream.release(message["numbers"])
            case "poison":
                self._stream.settle(message["number"], errors.PoisonBatch(message["text"]))
            case "stats":
                self._warn_of_store(message)
                with self._figures:
                    self.stats = message
                    self._figures_received = max(self._figures_received, message["asked"])
                    self._figures.notify_all()
                self._on_stats()
            case "story":
                with self._figures:
                    self._story = (message["batch"], message["lines"])
                    self._figures.notify_all()
            case "legacy":
                self._legacies[message["service"]] = message["left"]
            case "fatal":
                error = getattr(errors, message["error"])(message["text"])
                self._stream.fail(error, message["epoch"])
            case kind:
                raise errors.WireError(f"the engine said {kind!r}, which nobody understands")

    def _warn_of_store(self, told: Message) -> None:
        """Log changes of the store's trouble: nobody sees the engine's own log."""
        before, now = self.stats.get("store_trouble", ""), told.get("store_trouble", "")
        if now and not before:
            log.warning("%s; training goes on", now)
        elif before and not now:
            dropped = told["store_dropped"]
            log.info("the label store can be used again; labels not kept: %d", dropped)

    def _send(self, *news: Message) -> None:
        """Send the taken batches and the freed label memory, and then `news`."""
        with self._send_lock:
            self._asked = False  # before the queue is read: nothing stays unsent
            taken = [*self._unsent]
            # Read after the queue: a newer engine does not know of batches taken before.
            engine = self._engine
            if taken:
                taken[0] = {**taken[0], "free": engine.leases.over()}
            if taken or news:
                engine.channel.send_all((*taken, *news))
            for _ in taken:  # a Ctrl-C may cause a repeated message, which is harmless
                self._unsent.popleft()


def read_labels(message: Message, leases: ArrayLeases) -> BatchLabels:
    """Decode the engine's message about a labelled batch."""
    names = message["names"]
    if message["record"] is None:
        return BatchLabels(dict.fromkeys(names))
    record = Record.from_json(message["record"])
    arrays = dict(zip(names, leases.views(record), strict=True))
    return BatchLabels(arrays, record, message["makers"])
