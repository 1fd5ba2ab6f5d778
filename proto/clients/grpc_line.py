"""A line over one stream of gRPC's: its answers come in the order of the requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from ...errors import DeadlineExceeded, EdlError, TeacherLost
from ..stream_answers import FAREWELL, KNOWS_FAREWELLS
from .grpc_errors import translated
from .lines import Ended

_Waiting = SimpleQueue[bytes | EdlError]


class GrpcLine:
    """A `Line`. gRPC takes its requests from one thread, and its answers come to another.

    Args:
        method: makes a stream of an iterator over requests; of bytes, both ways.

    Raises:
        TeacherLost: the channel is closed.
    """

    def __init__(self, method: Any) -> None:
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        try:
            self._stream: Any = method(iter(self._requests.get, None), metadata=KNOWS_FAREWELLS)
        except ValueError:  # of gRPC, for a channel that was closed
            raise TeacherLost("the connection is closed") from None
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._ended: EdlError | None = None
        threading.Thread(target=self._listen, name="edl-answers", daemon=True).start()

    @property
    def is_open(self) -> bool:
        return self._ended is None

    def ask(self, message: bytes, until_s: float) -> memoryview:
        waiting = _Waiting()
        with self._lock:  # so that both queues have the same order
            if self._ended is not None:
                raise Ended(self._ended)
            self._waiting.append(waiting)
            self._requests.put(message)
        try:
            answer = waiting.get(timeout=max(until_s - time.monotonic(), 0.0))
        except Empty:
            raise DeadlineExceeded("no answer within the time that there was for one") from None
        if isinstance(answer, EdlError):
            raise Ended(answer)
        return memoryview(answer)

    def end(self) -> None:
        self._stream.cancel()

    def _listen(self) -> None:
        why: EdlError = TeacherLost("the server ended the stream")
        try:
            self._hear()
        except grpc.RpcError as error:
            why = translated(error)
            error.__traceback__ = None  # it is the stream, which would know this frame
        except Exception as error:
            why = TeacherLost(f"the stream broke: {type(error).__name__}: {error}")
        self._end(why)
        with self._lock:
            left, self._waiting = self._waiting, deque()
        for waiting in left:
            waiting.put(why)
        self._stream.cancel()

    def _hear(self) -> None:
        """Hand out answers until the stream ends, or says what nobody has asked for."""
        for answer in self._stream:
            if answer == FAREWELL:
                self._end(TeacherLost("the server takes leave"))
                continue
            with self._lock:
                waiting = self._waiting.popleft() if self._waiting else None
            if waiting is None:
                return
            waiting.put(answer)
            del answer, waiting  # not to be held until the next one comes

    def _end(self, why: EdlError) -> None:
        """Send nothing more: what is on its way may still be answered."""
        with self._lock:
            if self._ended is None:
                self._ended = why
                self._requests.put(None)  # or gRPC's thread would wait for ever
