"""What a user sees of a reader: its figures, and callbacks when something happens to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """A moment of a reader's life; counts are since it was made, over all its epochs.

    Attributes:
        yielded: batches that the source has yielded.
        delivered: batches that the training loop has received.
        samples_delivered: rows of those batches.
        samples_per_s: rows that the training loop took per second, over the last seconds.
        resends: requests beyond the first of their batch.
        hedges: requests that were asked of a second teacher, as the first was late.
        canaries: requests that were asked of a second teacher, to compare what both say.
        ejections: times that a teacher was put out of the pool, to be probed later.
        liars: how many of those were for labels that others contradicted.
        ready: labelled batches that the training loop has not taken yet.
        volume_bytes: of those, a moment ago.
        upper_bytes: `ut`; above it no new batch is pulled.
        lower_bytes: `lt`; below it pulling goes on.
        want: teachers that the reader asks for.
        needed: n = ceil(t_t/t_s); 0 while a time is unknown.
        t_t_s: seconds per sample of the average of its teachers; 0 while unknown.
        t_s_s: seconds per sample of the training step; 0 while unknown.
        teachers: names of the teachers that it sends to.
        ejected: names of those that are out of its pool for what they did.
        ejected_for: of each of them, in this order, the cause: "failed", "silent", "wrong", "lied",
            "refused".
        dispute: in words, which teachers contradict each other, on what and by how much, while no
            third is there to tell who is wrong; empty: none do.
        stragglers: names of those that are much slower than the others, or say nothing.
        in_flight: requests under way, by teacher.
        served: batches whose labels are used, by teacher, since it was assigned.
        starved_s: seconds that the training loop waited for labels.
        blocked_s: seconds that pulling was paused because the buffer was full.
        source_wait_s: seconds that the training loop waited for the source.
        state: `starved`, `source_wait`, `blocked` or `steady`.
        content_id: the model content that labels come from; empty while that is not known.
        label_kinds: what the teachers publish of their outputs, by name: "logits", "probabilities",
            "log-probabilities" or "other"; nothing of outputs of which they do not say it. Known
            with the first batch that they have labelled, and then the same; where teachers make
            the labels (top-k, `temperature`), another model content may have another kind.
        store_hits: samples whose labels the store had.
        store_misses: samples whose labels it did not have.
        store_dropped: samples whose labels could not be put into it.
        store_trouble: why the store cannot be used now; empty: all is well.
        waiting_for: in words, what the stream waits for; empty when for nothing.
        unlabelled: batches that were delivered without soft labels, as there was no teacher.
        partly_labelled: batches whose labels lack those of a service that was missing.
        weights: by service, of which the latest batch was mixed, where there are several.
        engine_restarts: times that the engine process was started anew.
    """

    yielded: int = 0
    delivered: int = 0
    samples_delivered: int = 0
    samples_per_s: float = 0.0
    resends: int = 0
    hedges: int = 0
    canaries: int = 0
    ejections: int = 0
    liars: int = 0
    ready: int = 0
    volume_bytes: int = 0
    upper_bytes: int = 0
    lower_bytes: int = 0
    want: int = 0
    needed: int = 0
    t_t_s: float = 0.0
    t_s_s: float = 0.0
    teachers: tuple[str, ...] = ()
    ejected: tuple[str, ...] = ()
    ejected_for: tuple[str, ...] = ()
    dispute: str = ""
    stragglers: tuple[str, ...] = ()
    in_flight: tuple[tuple[str, int], ...] = ()
    served: tuple[tuple[str, int], ...] = ()
    starved_s: float = 0.0
    blocked_s: float = 0.0
    source_wait_s: float = 0.0
    state: str = "steady"
    content_id: str = ""
    label_kinds: tuple[tuple[str, str], ...] = ()
    store_hits: int = 0
    store_misses: int = 0
    store_dropped: int = 0
    store_trouble: str = ""
    waiting_for: str = ""
    unlabelled: int = 0
    partly_labelled: int = 0
    weights: tuple[tuple[str, float], ...] = ()
    engine_restarts: int = 0

    @classmethod
    def of(cls, told: Mapping[str, Any], **own: Any) -> Self:
        """From what the engine has told, and what the trainer's side knows itself."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: _frozen(value) for key, value in told.items() if key in known} | own)

    def line(self) -> str:
        """One line for a progress bar, also what `str` gives; as long whatever the figures.

        Rows per second, the volume as a part of `ut`, teachers that it has and wants, and for how
        long labels, a full buffer and the source held the stream up.
        """
        volume = min(round(100 * self.volume_bytes / max(self.upper_bytes, 1)), 999)
        teachers = f"{len(self.teachers)}/{self.want}"
        return (
            f"{_scaled(self.samples_per_s, _RATES)}/s volume {volume:>3}% teachers {teachers:>5}"
            f" starved {_scaled(self.starved_s, _TIMES)}"
            f" blocked {_scaled(self.blocked_s, _TIMES)}"
            f" source {_scaled(self.source_wait_s, _TIMES)}"
        )

    def __str__(self) -> str:
        return self.line()


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_RATES: Final = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"))
_TIMES: Final = ((1.0, "s"), (60.0, "m"), (3600.0, "h"), (86400.0, "d"))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """A number in five characters: "12.1s", " 812k"."""
    size, unit = next((one for one in units if value < 999.5 * one[0]), units[-1])
    shown = min(value / size, 999.0)
    return f"{shown:.{int(shown < 99.95)}f}{unit}".rjust(5)


log = logging.getLogger(__name__)

CLOSE_GRACE_S: Final = 2.0


class Callback:
    """Told of what happens to a reader; override what you need, and pass it by `callbacks=[...]`.

    `on_batch` is called in the training loop, and costs it the time it takes. All others are called
    by one thread of the reader's, one after another, from its figures, which are renewed about five
    times a second: what comes and goes in between is not told. What a callback raises is logged,
    and stops nothing.
    """

    def on_batch(self, samples: int, waited_s: float) -> None:
        """The training loop is handed a batch of `samples` rows, `waited_s` after asking for it."""

    def on_starved(self, stats: ReaderStats) -> None:
        """The training loop has begun to wait for labels."""

    def on_blocked(self, stats: ReaderStats) -> None:
        """The buffer is full: teachers have begun to wait for the training loop."""

    def on_source_wait(self, stats: ReaderStats) -> None:
        """The training loop has begun to wait for the source of batches."""

    def on_teacher_joined(self, teacher: str) -> None:
        """The reader sends to this teacher from now on; also one that was ejected, and is well."""

    def on_teacher_lost(self, teacher: str) -> None:
        """The reader does not send to it any more: it has died, drains, or serves somebody else."""

    def on_teacher_ejected(self, teacher: str, cause: str) -> None:
        """It is out of the pool: "failed", "silent", "wrong", "lied" or "refused" says why."""

    def on_want_changed(self, want: int, before: int) -> None:
        """The reader asks for so many teachers."""

    def on_engine_restarted(self, restarts: int) -> None:
        """Its engine process had died; another one has taken over, the latest of so many."""


#: A call to be made: the method of a `Callback`, and its arguments.
Call = tuple[str, tuple[Any, ...]]


def calls_for(before: ReaderStats, after: ReaderStats) -> Iterator[Call]:
    """What is to be told between one look at the figures and the next."""
    if after.engine_restarts > before.engine_restarts:
        yield "on_engine_restarted", (after.engine_restarts,)
    had, has = _serving(before), _serving(after)
    ejected = [name for name in after.ejected if name not in before.ejected]
    for name in has:
        if name not in had:
            yield "on_teacher_joined", (name,)
    for name in had:
        if name not in has and name not in ejected:
            yield "on_teacher_lost", (name,)
    for name, cause in zip(after.ejected, after.ejected_for, strict=True):
        if name in ejected:
            yield "on_teacher_ejected", (name, cause)
    if after.want != before.want:
        yield "on_want_changed", (after.want, before.want)
    if after.state != before.state and after.state != "steady":
        yield f"on_{after.state}", (after,)


def _serving(stats: ReaderStats) -> list[str]:
    return [name for name in stats.teachers if name not in stats.ejected]


class Callbacks:
    """Makes the calls of one reader, until `close`.

    Args:
        callbacks: who is told.
        look: the reader's figures at this moment.

    Raises:
        UsageError: something is no `Callback`.
    """

    def __init__(self, callbacks: Sequence[Callback], look: Callable[[], ReaderStats]) -> None:
        if not isinstance(callbacks, Iterable):
            raise UsageError(f"callbacks is a list, as in callbacks=[{callbacks!r}]")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise UsageError(
                    f"callbacks are objects of subclasses of Callback, not {callback!r}"
                )
        self._callbacks = tuple(callbacks)
        self._look = look
        self._changed = threading.Condition()
        self._news = self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        if self._callbacks:
            self._thread = threading.Thread(
                target=self._watch, name="edl-reader-callbacks", daemon=True
            )
            self._thread.start()

    def batch(self, samples: int, waited_s: float) -> None:
        """The training loop is handed a batch."""
        self._call("on_batch", (samples, waited_s))

    def notify(self) -> None:
        """There are new figures to look at."""
        if self._thread is not None:
            with self._changed:
                self._news = True
                self._changed.notify()

    def close(self) -> None:
        """Call nobody any more; a call that is under way may still end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(CLOSE_GRACE_S)

    def _watch(self) -> None:
        before = ReaderStats()
        while self._wait():
            after = self._look()
            for name, arguments in calls_for(before, after):
                self._call(name, arguments)
            before = after

    def _wait(self) -> bool:
        """Wait for new figures; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._closed)
            self._news = False
            return not self._closed

    def _call(self, name: str, arguments: tuple[Any, ...]) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, name)(*arguments)
            except Exception:
                log.exception("%s of callback %r failed", name, callback)
