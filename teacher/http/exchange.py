"""One plain request for labels, from its head to its answer, without ASGI between it and a batch.

What is promised of other requests is promised of these: the caller is known, and the length
allowed, before there is memory for a body; it has as much time, and its place in the table of
calls.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from ...coordinator.config import join_address
from ...errors import EdlError, RateLimited, RetryableError
from ...proto.json_tensors import HEAD_LENGTH
from .. import access_log
from ..access_log import Entry
from ..config import ServerConfig
from ..front.calls import Call, CallTable
from ..shared_memory.visitors import Visitor
from .bodies import Body, check_size, in_time
from .callers import Callers
from .guard import Guard
from .heads import Head
from .inference import Asked, Inference, Labels
from .statuses import CLIENT_GONE, to_http

log = logging.getLogger(__name__)

_HEAD_LENGTH: Final = HEAD_LENGTH.lower()
_SCRATCH_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Desk:
    """What all exchanges of a server need.

    Attributes:
        config: the limits.
        guard: keeps web pages out.
        callers: who may ask.
        calls: the calls that have batches labelled, by whichever protocol they came.
        inference: answers batches.
        on_refused: told of each error that a request is answered with.
        scratch: where all connections read what is no body that is kept; taken out at once.
    """

    config: ServerConfig
    guard: Guard
    callers: Callers
    calls: CallTable
    inference: Inference
    on_refused: Callable[[EdlError], None]
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(_SCRATCH_BYTES)))


class Exchange:
    """One request; its body is not there yet.

    Args:
        desk: of its server.
        head: of the request.
        certificate: the common name of the connection's certificate, where it has one.
        address: of the caller.
        beside: headers that every answer has.

    Attributes:
        body: takes in what comes, or throws it away.
        last: no other request follows on this connection.
    """

    def __init__(
        self,
        desk: Desk,
        head: Head,
        certificate: str | None,
        address: tuple[str, int],
        beside: Callable[[], Iterable[tuple[bytes, bytes]]],
    ) -> None:
        self.last = head.last
        self._desk = desk
        self._head = head
        self._beside = beside
        self._entry = access_log.call("http", f"POST {head.path}", lambda: join_address(*address))
        self._call: Call | None = None
        self._refusal = desk.guard.refusal(head.headers)
        self._error: EdlError | None = None
        self.body = Body(head.nbytes)
        if self._refusal is None:
            try:
                self._admit(certificate, address)
            except EdlError as error:
                # Without its traceback, which knows this.
                self._error = error.with_traceback(None)

    def _admit(self, certificate: str | None, address: tuple[str, int]) -> None:
        desk, headers, nbytes = self._desk, self._head.headers, self._head.nbytes
        authorization = headers.get("authorization", "")
        self._visitor: Visitor = desk.callers.known(authorization, certificate, address, "student")
        self._call = desk.calls.begin(self._visitor.owner)
        check_size(nbytes, desk.config.max_message_bytes)
        desk.calls.announced(self._call, nbytes)
        said = headers.get(_HEAD_LENGTH, "")
        aligned_at = int(said) if said.isascii() and said.isdigit() and len(said) < 12 else 0
        try:
            self.body.keep(aligned_at)
        except MemoryError:
            raise RateLimited(f"there is no memory for {nbytes} bytes: try again later") from None

    async def answer(self) -> bytes:
        """What goes out, to its last byte; an error has been made one."""
        with self._entry as entry:
            try:
                answer = await self._answer(entry)
            except asyncio.CancelledError:
                entry.ended(CLIENT_GONE)
                raise
            finally:
                self.end()
        return answer

    def end(self) -> None:
        """Let go of what it holds. Idempotent."""
        self.body.forget()
        if self._call is not None:
            self._desk.calls.end(self._call)
            self._call = None

    async def _answer(self, entry: Entry) -> bytes:
        if self._refusal is not None:
            status, words = self._refusal
            return self._failed(entry, status, {}, words)
        try:
            if self._error is not None:
                raise self._error
            labels = await self._labels(entry)
        except EdlError as error:
            self._desk.on_refused(error)
            return self._failed(entry, *to_http(error))
        except Exception as error:  # this request fails, and no other
            log.exception("a request could not be answered")
            words = f"{type(error).__name__}: {error}"
            return self._failed(entry, *to_http(RetryableError(words)))
        finally:
            self._error = None
        entry.ended(HTTPStatus.OK)
        entry.sent(labels.nbytes)
        return labels.content

    async def _labels(self, entry: Entry) -> Labels:
        assert self._call is not None
        async with in_time(self._desk.calls, self._call, self._desk.config.receive_s):
            body = await self.body.whole()
        entry.received(len(body))
        head = self._head
        asked = Asked(head.model, head.version, body, head.headers.get(_HEAD_LENGTH))
        return await self._desk.inference.labels(asked, self._visitor, entry, self._before)

    def _failed(self, entry: Entry, status: int, headers: Mapping[str, str], words: str) -> bytes:
        said = json.dumps({"error": words}).encode()
        entry.ended(status)
        entry.sent(len(said))
        headers = {"content-type": "application/json", **headers}
        return self._head_of(status, headers, len(said)) + said

    def _before(self, headers: Mapping[str, str], nbytes: int) -> bytes:
        return self._head_of(HTTPStatus.OK, headers, nbytes)

    def _head_of(self, status: int, headers: Mapping[str, str], nbytes: int) -> bytes:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name.decode()}: {value.decode()}" for name, value in self._beside()]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"content-length: {nbytes}")
        if self.last:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
