"""The calls of `TeacherPool` that wait for the labels of a batch: limits, deadlines, answers."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np

from ..proto.arena import Array, ArrayRef, Record, dtype_named
from ..runtime.errors import EdlError, LabelTimeout, ProcessFailed
from .batch_stream import copy_error
from .structure import BatchParts, soft_labels

log = logging.getLogger(__name__)

#: Maximum number of calls that wait for labels; further calls wait for room.
MAX_CALLS: Final = 1024
#: Longest single wait; Python refuses timeouts of centuries.
_LONGEST_WAIT_S: Final = 3600.0
#: Seconds that `Calls.fail` waits for a callback of the user.
_CALLBACK_GRACE_S: Final = 1.0

CLOSED: Final = "this pool of teachers is closed"

#: The labels of a batch, by name.
Labels = dict[str, Any]


@dataclass(slots=True, eq=False, weakref_slot=True)
class PendingCall:
    """A call that waits for the labels of its batch.

    Users may keep the future: it does not refer to this object, so the memory of the batch is free
    once the call has its answer.

    Attributes:
        future: gets the labels, or an error.
        record: where the arrays of the batch are in the ring.
        arrays: views of these arrays, which keep the memory from being reused.
        parts: the structure of the batch, without its arrays.
        nbytes: bytes of its arrays, as passed to `Calls.reserve`.
        timeout_s: seconds that the call may take, for the text of errors.
        deadline: end of that time, by the monotonic clock.
        number: number of the batch; it changes when an engine starts, or an epoch begins or is
            left.
        has_room: whether the call still holds the room that was reserved for it.
    """

    future: Future[Labels]
    record: Record
    arrays: Sequence[Array]
    parts: BatchParts
    nbytes: int
    timeout_s: float
    deadline: float
    number: int = -1
    has_room: bool = True


class Calls:
    """The calls that wait for labels. Thread-safe.

    Args:
        max_bytes: limit of the bytes of all batches that wait; a single batch may exceed it.
        waiting_for: returns a description of what the engine waits for; empty: unknown.
        dropped: called when nobody waits for a batch any more, with its number and the reason:
            "late" or "cancelled"; must not block.

    Attributes:
        answered: number of calls that got labels.
        failed: number of calls that got an error.
        latest_labels: dtype and shape of each of the latest labels, by name; empty: none yet.
    """

    def __init__(
        self,
        max_bytes: int,
        waiting_for: Callable[[], str],
        dropped: Callable[[int, str], None],
    ) -> None:
        self.answered = self.failed = 0
        self.latest_labels: Mapping[str, ArrayRef] = {}
        self._max_bytes = max_bytes
        self._waiting_for = waiting_for
        self._dropped = dropped
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        #: Cancelled calls for the watcher; None wakes it before `_watcher_wakes_at`. A finalizer
        #: may cancel a future while any lock is held; `SimpleQueue.put` is safe even then.
        self._to_watcher: SimpleQueue[PendingCall | None] = SimpleQueue()
        self._watcher_wakes_at = inf
        self._waiting: dict[int, PendingCall] = {}  # by number, in order
        self._count = self._nbytes = 0  # reserved, waiting calls included
        self._queue: deque[object] = deque()  # the threads that wait for room, in order
        self._answering = threading.local()  # has `depth` in threads that run users' callbacks
        self._fatal: EdlError | None = None
        self._watcher: threading.Thread | None = None

    def reserve(self, nbytes: int, timeout_s: float, deadline: float) -> None:
        """Wait until there is room for another batch; first come, first served.

        A callback of a future gets room at once, because no answer makes room before the callback
        returns.

        Args:
            nbytes: bytes of the batch.
            timeout_s: seconds that the call may take, for the text of the error.
            deadline: end of that time, by the monotonic clock.

        Raises:
            LabelTimeout: there was no room until the deadline.
            EdlError: the engine labels nothing any more; the error says why.
        """
        place = object()
        with self._lock:
            self._queue.append(place)
            try:
                while self._fatal is None:
                    if self.is_in_callback or (self._queue[0] is place and self._has_room(nbytes)):
                        self._count += 1
                        self._nbytes += nbytes
                        return
                    if (left_s := deadline - time.monotonic()) <= 0:
                        raise self._late(timeout_s)
                    self._room.wait(min(left_s, _LONGEST_WAIT_S))
                raise copy_error(self._fatal)
            finally:
                self._queue.remove(place)
                if self._queue:
                    self._room.notify_all()

    def release(self, nbytes: int) -> None:
        """Release reserved room for which no call was added."""
        with self._lock:
            self._release(nbytes)

    def forget(self, call: PendingCall) -> None:
        """Remove a call that failed before its future was returned."""
        with self._lock:
            self._take_out(call)

    def __len__(self) -> int:
        """Return the number of calls that wait for labels."""
        return len(self._waiting)

    @property
    def is_in_callback(self) -> bool:
        """Whether this thread runs a user's callback; until that ends, it answers no other call."""
        return getattr(self._answering, "depth", 0) > 0

    def add(self, call: PendingCall) -> None:
        """Add a call. It is removed when it is answered, cancelled or past its deadline.

        Raises:
            ProcessFailed: the system refuses a thread.
            EdlError: the engine labels nothing any more; the error says why.
        """
        with self._lock:
            if self._fatal is not None:
                raise copy_error(self._fatal)
            self._waiting[call.number] = call
            if self._watcher is None:
                watcher = threading.Thread(
                    target=self._watch, name="edl-pool-deadlines", daemon=True
                )
                try:
                    watcher.start()
                except RuntimeError as error:  # the next call tries again
                    raise ProcessFailed(f"the system refuses a thread for calls: {error}") from None
                self._watcher = watcher
            if call.deadline < self._watcher_wakes_at:
                self._to_watcher.put(None)
        call.future.add_done_callback(partial(self._on_done, weakref.ref(call)))

    def answer_without_rows(self, parts: BatchParts) -> Future[Labels]:
        """Answer a call for a batch without rows, for which no teacher is needed."""
        labels = {
            name: np.empty((0, *latest.shape[1:]), dtype_named(latest.dtype))
            for name, latest in self.latest_labels.items()
        }
        future = Future[Labels]()
        future.set_result(soft_labels(parts.skeleton, labels))
        with self._lock:
            self.answered += 1
        return future

    def renumber(self, next_number: Callable[[], int]) -> list[PendingCall]:
        """Give new numbers to the waiting calls, in order, and return these calls."""
        with self._lock:
            calls = [*self._waiting.values()]
            for call in calls:
                call.number = next_number()
            self._waiting = {call.number: call for call in calls}
            return calls

    def answer(self, number: int, labels: Mapping[str, Array | None] | EdlError) -> bool:
        """Answer a call; returns False if no call with this number waits.

        The caller's thread converts labels to tensors of the batch's framework, and runs the
        callbacks of the future.
        """
        with self._lock:
            call = self._waiting.get(number)
        return call is not None and self._settle(call, labels)

    def _settle(self, call: PendingCall, labels: Mapping[str, Array | None] | EdlError) -> bool:
        """Answer this call; returns False if it no longer waits."""
        with self._lock:
            if not self._take_out(call):
                return False
        if not call.future.set_running_or_notify_cancel():
            return True
        error: Exception | None = None
        soft: Labels = {}
        if isinstance(labels, EdlError):
            error = labels
        else:
            try:
                soft = soft_labels(call.parts.skeleton, labels)
            except Exception as raised:
                error = raised
        with self._lock:
            self.answered += error is None
            self.failed += error is not None
        self._answering.depth = getattr(self._answering, "depth", 0) + 1
        try:
            if error is None:
                call.future.set_result(soft)
            else:
                call.future.set_exception(error)
        except BaseException as raised:  # a callback may call sys.exit; batches need this thread
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and isinstance(raised, KeyboardInterrupt):  # during `close`
                raise
            log.exception(
                "a callback of a future raised %s, which does not end the program, because the"
                " callback runs in a thread of the reader",
                type(raised).__name__,
            )
        finally:
            self._answering.depth -= 1
        return True

    def fail(self, error: EdlError) -> None:
        """Answer all waiting calls with an error; `reserve` and `add` raise it from now on."""
        with self._lock:
            self._fatal = self._fatal or error
            calls = [*self._waiting.values()]
            self._room.notify_all()
            self._to_watcher.put(None)
        for call in calls:
            self._settle(call, copy_error(error))
        watcher = self._watcher
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(_CALLBACK_GRACE_S)

    def _take_out(self, call: PendingCall) -> bool:
        """Remove a call and release its room; returns whether it waited. Needs `_lock`."""
        if call.has_room:
            call.has_room = False
            self._release(call.nbytes)
        return self._waiting.pop(call.number, None) is not None

    def _has_room(self, nbytes: int) -> bool:
        if self._count >= MAX_CALLS:
            return False
        return not self._count or self._nbytes + nbytes <= self._max_bytes

    def _release(self, nbytes: int) -> None:
        self._count -= 1
        self._nbytes -= nbytes
        self._room.notify_all()

    def _on_done(self, ref: weakref.ref[PendingCall], future: Future[Labels]) -> None:
        """Have the watcher forget a call that the user has cancelled."""
        if future.cancelled() and (call := ref()) is not None:
            self._to_watcher.put(call)

    def _watch(self) -> None:
        """Fail calls at their deadlines, and forget cancelled ones."""
        while True:
            with self._lock:
                now = time.monotonic()
                late = [call for call in self._waiting.values() if call.deadline <= now]
                if self._fatal is not None and not late:
                    return
                deadlines = (call.deadline for call in self._waiting.values())
                self._watcher_wakes_at = min(deadlines, default=inf)
            if not late:
                self._wait_for_cancelled(min(self._watcher_wakes_at - now, _LONGEST_WAIT_S))
            while late:
                self._fail_late(late.pop(0))

    def _wait_for_cancelled(self, timeout_s: float) -> None:
        """Wait for a message to the watcher: a cancelled call to forget, or None."""
        try:
            call = self._to_watcher.get(timeout=timeout_s)
        except Empty:
            return
        if call is None:
            return
        with self._lock:
            waited = self._take_out(call)
        if waited:
            call.future.set_running_or_notify_cancel()
            self._dropped(call.number, "cancelled")

    def _fail_late(self, call: PendingCall) -> None:
        if self._settle(call, self._late(call.timeout_s)):
            self._dropped(call.number, "late")

    def _late(self, timeout_s: float) -> LabelTimeout:
        why = self._waiting_for() or "the engine has not reported a reason"
        return LabelTimeout(f"no labels within {timeout_s:g} s: {why}")
