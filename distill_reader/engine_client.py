"""The trainer's hold on its engine: starts it, speaks to it, and starts another when it dies.

The engine is a process of its own (ADR-0021). What it knows can be rebuilt at any moment from what
lies in the ring: after a death the next engine is told of every batch that still waits for its
labels, and begins again; labels that had come already stay valid, in the arena of the engine that
wrote them.
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
#: The engine gives its teachers back before it ends.
STOP_GRACE_S = 4.0
#: Batches that follow each other so closely are announced one upon the other.
SOON_S = 0.002
#: So long the figures that were asked for are waited for; an engine that is well takes 1 ms.
FIGURES_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineInstance:
    """One engine: its process, the line to it, and the memory that it writes labels into."""

    process: Process
    channel: Channel
    labels: Arena
    leases: ArrayLeases


class EngineClient:
    """Starts an engine for `stream` and `ring`, and keeps one running until `close`.

    Attributes:
        stats: the latest figures that an engine sent.
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
        self._legacies: dict[str, Message] = {}  # what each service's engine leaves to the next one
        self._closing = False
        self._figures = threading.Condition()
        self._figures_asked = self._figures_told = 0  # times
        self._story: tuple[int, list[str]] = (-1, [])  # of which batch
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._later = later
        self._untold: deque[Message] = deque()  # what the training loop took
        self._taken = -1  # number of the latest of these
        self._asked = False  # somebody is to tell it, later
        self._pulls_at = -inf  # when a batch was announced, and the next one is on its way
        self._telling = threading.Lock()  # what was taken before anything else is told before it
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
        """Tell the engine of a batch in the ring; each batch once per engine."""
        with self._lock:
            if self._stream.epoch == epoch and pulled.number > self._announced:
                self._pulls_at = time.monotonic()
                self._tell(self._news_of(pulled))

    def rests(self) -> None:
        """No batch is announced before the engine allows another one, or the epoch is over."""
        self._pulls_at = -inf
        if self._untold:
            self._tell()

    def source_ended(self, epoch: int) -> None:
        """The source has no more batches for `epoch`."""
        with self._lock:
            self._pulls_at = -inf
            if self._stream.epoch == epoch:
                self._tell({"kind": "ended"})

    def waiting(self) -> None:
        """The training loop waits for its next batch."""
        self._tell({"kind": "waiting", "at": time.monotonic()})

    def taken(self, number: int, samples: int, step_s: float | None) -> None:
        """The training loop has batch `number`, after `step_s` seconds of work on the last one.

        It does not wait for the engine to be told: another thread does that, or whoever tells it
        the next thing; while batches are announced one upon the other, that is left to the next
        announcement. The stream knows that the batch is taken, so an engine that is started
        meanwhile never hears of it.
        """
        at = time.monotonic()
        if number != self._taken:  # else it was told, and a Ctrl-C came
            self._taken = number
            self._untold.append(
                {"kind": "taken", "number": number, "samples": samples, "step_s": step_s, "at": at}
            )
        if not self._asked and at - self._pulls_at > SOON_S:
            self._asked = True
            self._later(self._tell)

    def reset(self, epoch: int, data_epoch: int, pulled: int) -> None:
        """Forget every batch: `epoch` begins, and its first batch will have the number `pulled`.

        `data_epoch` counts the epochs that were begun over the source, and not only left.
        """
        with self._lock:  # behind this nothing of an older epoch is announced
            news = {"kind": "reset", "epoch": epoch, "data_epoch": data_epoch, "pulled": pulled}
            self._tell({**news, "free": self._engine.leases.over()})

    def ask_for_figures(self) -> None:
        """Have the engine tell figures that know all that it was told until now."""
        with self._figures:
            self._figures_asked += 1
        self._tell({"kind": "figures", "number": self._figures_asked})

    def figures(self) -> Message:
        """The latest figures; those that were asked for, unless they are too long in coming."""
        with self._figures:
            asked = self._figures_asked
            told = self._figures.wait_for(lambda: self._figures_told >= asked, FIGURES_S)
            if not told:  # not to be waited for again
                self._figures_told = asked
            return self.stats

    def story(self, batch: int) -> list[str]:
        """What the engine remembers of a batch, a line each; none if that is too long in coming."""
        self._tell({"kind": "story", "batch": batch})
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
        # Sent at the end, without the locks: a process that starts does not read at once.
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
        """For a new engine: a batch to be labelled, or its outcome, and who has labelled it."""
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
        """A batch in the ring, and where its fields lie."""
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

    # --- what engines say

    def _receive(self) -> None:
        try:
            while not self._closing:
                while (message := self._engine.channel.receive()) is not None:
                    self._on_message(message)
                    if self._untold and not self._asked and self._is_late():
                        self._tell()
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
        except Exception as error:  # whatever it is, the training loop must not wait for ever
            what = f"{type(error).__name__}: {error}"
            self._stream.fail(errors.EngineLost(f"the reader lost its engine: {what}"))

    def _is_late(self) -> bool:
        """Whether the announcement that is expected has not come: the source takes its time."""
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
                    self._figures_told = max(self._figures_told, message["asked"])
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
        """Log each change of what troubles the store: the engine's own log is seen by nobody."""
        before, now = self.stats.get("store_trouble", ""), told.get("store_trouble", "")
        if now and not before:
            log.warning("%s; training goes on", now)
        elif before and not now:
            dropped = told["store_dropped"]
            log.info("the label store can be used again; labels not kept: %d", dropped)

    def _tell(self, *news: Message) -> None:
        """Send what the training loop took, the label memory that it let go of, and then `news`."""
        with self._telling:
            self._asked = False  # before the look at what is here: nothing is left untold
            taken = [*self._untold]
            # Read behind that: an engine that is newer never heard of what was taken before.
            engine = self._engine
            if taken:
                taken[0] = {**taken[0], "free": engine.leases.over()}
            if taken or news:
                engine.channel.send_all((*taken, *news))
            for _ in taken:  # told twice, if a Ctrl-C has come in between, is as good as once
                self._untold.popleft()


def read_labels(message: Message, leases: ArrayLeases) -> BatchLabels:
    """The engine's message about a labelled batch, read."""
    names = message["names"]
    if message["record"] is None:
        return BatchLabels(dict.fromkeys(names))
    record = Record.from_json(message["record"])
    arrays = dict(zip(names, leases.views(record), strict=True))
    return BatchLabels(arrays, record, message["makers"])
