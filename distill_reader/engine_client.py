"""The trainer's hold on its engine: starts it, speaks to it, and starts another when it dies.

The engine is a process of its own (ADR-0003). What it knows can be rebuilt at any moment from what
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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from .. import errors
from ..proto.arena import Arena, Array, ArrayRef, Record
from ..proto.channel import Channel, Message
from ..supervise import Process, own_fd, python_command, start
from .config import ReaderConfig, new_incarnation
from .ring import Ring, lease
from .stream import Labels, Pulled, Stream

log = logging.getLogger(__name__)

#: An engine that dies this often within `DEATHS_WINDOW_S` is not started again.
MAX_DEATHS = 5
DEATHS_WINDOW_S = 60.0
#: The engine gives its teachers back before it ends.
STOP_GRACE_S = 4.0


@dataclass(frozen=True, slots=True)
class Life:
    """One engine: its process, the line to it, and the memory that it writes labels into."""

    process: Process
    channel: Channel
    labels: Arena


class EngineClient:
    """Starts an engine for `stream` and `ring`, and keeps one running until `close`.

    Attributes:
        stats: the latest figures that an engine sent.
        restarts: engines started after the first.
    """

    def __init__(self, config: ReaderConfig, stream: Stream, ring: Ring) -> None:
        self.stats: Message = {}
        self.restarts = 0
        self._config = config
        self._stream = stream
        self._ring = ring
        self._lock = threading.Lock()  # orders "announce a batch" against "start a new engine"
        self._announced = -1
        self._closing = False
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        # Filled by the garbage collector, which may run inside any call of ours: so without a lock.
        self._dropped: deque[tuple[Arena, int]] = deque()
        self._life = self._start()  # replaced as one, so that nobody sees parts of two
        self._receiver = threading.Thread(
            target=self._receive, name="edl-reader-receiver", daemon=True
        )
        self._receiver.start()

    @property
    def pid(self) -> int:
        """Process id of the engine that runs now."""
        return self._life.process.pid

    def announce(self, pulled: Pulled, epoch: int) -> None:
        """Tell the engine of a batch in the ring; each batch once per engine."""
        with self._lock:
            if self._stream.epoch == epoch:
                self._announce(self._life, pulled)

    def source_ended(self, epoch: int) -> None:
        """The source has no more batches for `epoch`."""
        with self._lock:
            if self._stream.epoch == epoch:
                self._life.channel.send("ended")

    def waiting(self) -> None:
        """The training loop waits for its next batch."""
        self._life.channel.send("waiting")

    def taken(self, number: int, samples: int, step_s: float | None) -> None:
        """The training loop has batch `number`, after `step_s` seconds of work on the last one."""
        life = self._life
        life.channel.send(
            "taken", number=number, samples=samples, step_s=step_s, free=self._to_be_freed(life)
        )

    def reset(self, epoch: int, data_epoch: int, pulled: int) -> None:
        """Forget every batch: `epoch` begins, and its first batch will have the number `pulled`.

        `data_epoch` counts the epochs that were begun over the source, and not only left.
        """
        with self._lock:  # behind this nothing of an older epoch is announced
            life = self._life
            free = self._to_be_freed(life)
            life.channel.send("reset", epoch=epoch, data_epoch=data_epoch, pulled=pulled, free=free)

    def drop_labels(self, labels: Labels) -> None:
        """Nobody will read these labels: the engine may use their memory again."""
        _give_back(self._dropped, labels.arena, labels.record.offset)

    def label_views(self, labels: Labels) -> dict[str, Array]:
        """The labels by name, without a copy; their memory is given back with the last view."""
        views = lease(labels.arena, labels.record, partial(_give_back, self._dropped, labels.arena))
        return dict(zip(labels.names, views, strict=True))

    def close(self) -> None:
        """End the engine and the receiving thread; bounded by a few seconds."""
        self._closing = True
        with self._lock:
            self._life.channel.send("stop")
            self._life.process.stop(STOP_GRACE_S)
            self._life.channel.close()
            self._life.labels.close()
        if self._receiver is not threading.current_thread():
            self._receiver.join(STOP_GRACE_S)

    # --- one engine's life

    def _start(self) -> Life:
        labels = Arena.create()
        channel, fd = Channel.pair()
        own_fd(channel.fileno())
        ring_fd = self._ring.arena.fd
        command = python_command(
            "engine",
            "edl.distill_reader.engine",
            str(fd),
            str(ring_fd),
            str(labels.fd),
            pass_fds=(fd, ring_fd, labels.fd),
        )
        try:
            process = start(command)
        except BaseException:
            channel.close()
            labels.close()
            raise
        finally:
            os.close(fd)
        channel.send("start", config=self._config.to_json())
        return Life(process, channel, labels)

    def _restart(self) -> None:
        with self._lock:
            old = self._life
            old.process.stop(0.0)
            old.channel.close()
            if self._closing:
                return
            log.warning("the reader's engine ended, starting another: %s", self._last_words())
            # A start of its own: managers let nobody else speak for the one that has died.
            self._config = replace(
                self._config, incarnation=new_incarnation(self._config.incarnation)
            )
            new = self._start()
            self.restarts += 1
            self._announced = -1
            with self._stream.held() as held:  # so what the training loop does next comes behind
                for pulled in held.labelled:
                    new.channel.send("held", number=pulled.number, nbytes=pulled.record.nbytes)
                for pulled in held.unlabelled:
                    self._announce(new, pulled)
                new.channel.send(
                    "resumed",
                    epoch=held.epoch,
                    data_epoch=held.data_epoch,
                    content_id=self.stats.get("content_id", ""),
                    pulled=held.pulled,
                    ended=held.ended,
                    waiting=held.waiting,
                )
                self._life = new
            old.labels.close()

    def _announce(self, life: Life, pulled: Pulled) -> None:
        if pulled.number <= self._announced:
            return
        self._announced = pulled.number
        refs = pulled.record.arrays
        life.channel.send(
            "batch",
            number=pulled.number,
            nbytes=pulled.record.nbytes,
            samples=pulled.parts.samples,
            source_s=pulled.source_s,
            fields=[[key, refs[index].to_json()] for key, index in pulled.parts.fields],
        )

    def _last_words(self) -> str:
        process = self._life.process
        return " | ".join(process.tail(3)) or f"exit code {process.returncode}"

    # --- what engines say

    def _receive(self) -> None:
        try:
            while not self._closing:
                for message in self._life.channel:
                    self._on_message(message)
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

    def _span_of_deaths(self) -> float:
        return self._deaths[-1] - self._deaths[0]

    def _on_message(self, message: Message) -> None:
        match message["kind"]:
            case "allow":
                self._stream.allow(message["limit"])
            case "labelled":
                labels = read_labels(message, self._life.labels)
                if not self._stream.settle(message["number"], labels):
                    self.drop_labels(labels)
            case "poison":
                self._stream.settle(message["number"], errors.PoisonBatch(message["text"]))
            case "stats":
                self.stats = message
            case "fatal":
                error = getattr(errors, message["error"])(message["text"])
                self._stream.fail(error, message["epoch"])
            case kind:
                raise errors.WireError(f"the engine said {kind!r}, which nobody understands")

    def _to_be_freed(self, life: Life) -> list[int]:
        """Label records to be given back; those of an engine that died have gone with it."""
        offsets = []
        with suppress(IndexError):  # it is empty; another thread may be at it too
            while True:
                arena, offset = self._dropped.popleft()
                if arena is life.labels:
                    offsets.append(offset)
        return offsets


def _give_back(dropped: deque[tuple[Arena, int]], arena: Arena, offset: int) -> None:
    """Have a record freed with the next message; may be called by the garbage collector."""
    if arena.fd >= 0:  # else its engine has died, and the memory goes with the last that views it
        dropped.append((arena, offset))


def read_labels(message: Message, arena: Arena) -> Labels:
    """The engine's message about a labelled batch, read."""
    names = tuple(str(name) for name, _ in message["labels"])
    refs = tuple(ArrayRef.from_json(ref) for _, ref in message["labels"])
    return Labels(names, Record(int(message["offset"]), int(message["nbytes"]), refs), arena)
