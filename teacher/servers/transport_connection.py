"""A connection of a reader: its proof, its requests, and their answers in any order.

Arrays are received directly into the memory that the predictors read, except for bytes that come
together with the header of a request; these are copied. While
`frames.REQUESTS_PER_CONNECTION` requests are in work, no more are read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from ...proto import frames
from ...proto.frames import FrameHeader
from ...runtime.errors import EdlError, RateLimited, WireError
from ..request import InputBuffers, RequestTooLarge
from .admission import AdmittedCall, Deadline, SendingDeadline
from .callers import user_behind
from .transport_session import FramedRequest, TransportSession

if TYPE_CHECKING:
    from .transport_listener import PendingOffer, TransportListener


log = logging.getLogger(__name__)

#: Size of the buffer for headers, heads (shapes, locations), JSON, and first bytes of arrays.
_STAGING_BYTES: Final = frames.HEADER.size + frames.MAX_JSON_BYTES
_MAX_HEAD_BYTES: Final = frames.MAX_ARRAYS * (8 * frames.MAX_NDIM + frames.BUFFER_LOCATION.size)
#: Size of a socket's buffer for answers.
_SEND_BYTES: Final = 1 << 20
#: While arrays arrive, the event loop wakes after this many bytes, or when they are complete.
_WAKE_BYTES: Final = 512 << 10
#: Seconds for a reader to close a connection after the last answer.
_LINGER_S: Final = 1.0


class ReaderConnection(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection. Used only in the event loop.

    Args:
        listener: the listener that accepted it.
    """

    def __init__(self, listener: TransportListener) -> None:
        self._listener = listener
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start = self._end = 0  # range of the unprocessed bytes in `_staging`
        self._offered: PendingOffer | None = None  # named by the hello, perhaps not proved yet
        self._challenges = b"", b""  # the reader's, the teacher's
        self._session: TransportSession | None = None  # after the proof
        self._call: AdmittedCall | None = None  # this connection, as one stream; after the proof
        self._incoming: FramedRequest | None = None  # its arrays are being received
        self._skip = 0  # bytes of a refused request that are still to be discarded
        self._tasks: dict[asyncio.Task[bytes], int] = {}  # task of each request -> its bytes
        self._writing_paused = False  # the peer does not read answers
        self._reading_paused = False
        self._refuses_requests = False  # no more requests are accepted
        self._is_closing = False  # everything is answered
        self._receive_deadline = Deadline(listener.config.receive_s, self.abort)
        self._linger_deadline = Deadline(_LINGER_S, lambda: self._transport.close())
        self._encrypted = False
        self._wake_bytes = 1  # bytes that wake the event loop

    def leave(self) -> None:
        """Accept no more requests, and close after the pending ones; without a proof, close now."""
        if self._session is None:
            self.abort()
        elif not self._refuses_requests:
            self._refuses_requests = True
            self._send_deadline.write(frames.goaway_frame())
            self._process()

    def abort(self) -> None:
        """Close now."""
        self._refuses_requests = True
        self._transport.abort()

    # --- called by the transport of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send_deadline = SendingDeadline(transport, self._listener.config.receive_s)
        # Report any unsent byte. With a limit of 0, TLS would report all the time.
        transport.set_write_buffer_limits(high=1, low=0)
        connection = self._socket = transport.get_extra_info("socket")
        # TLS reads ahead, so the socket's low-water mark does not work with it.
        self._encrypted = transport.get_extra_info("ssl_object") is not None
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._listener.connection_opened(self)
        self._receive_deadline.start()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._incoming is not None:
            return self._incoming.missing[0]
        if self._skip or self._refuses_requests:
            self._start = self._end = 0  # discard
        elif self._start:
            rest = self._end - self._start
            self._staging[:rest] = bytes(self._staging[self._start : self._end])
            self._start, self._end = 0, rest
        room = self._staging[self._end :]
        return room[: self._skip] if self._skip else room

    def buffer_updated(self, nbytes: int) -> None:
        if (incoming := self._incoming) is not None:
            incoming.received(nbytes)
            if (missing := incoming.missing) and not self._writing_paused:
                threshold = min(sum(map(len, missing)), _WAKE_BYTES)
                if threshold != self._wake_bytes:
                    self._set_wake_threshold(threshold)
                return
        elif self._skip:
            self._skip -= nbytes
            if not self._skip:
                self._receive_deadline.stop()
        elif self._refuses_requests:
            return
        else:
            self._end += nbytes
        self._process()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._receive_deadline.stop()  # nothing is read until the peer has read the answers
        self._send_deadline.start()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._send_deadline.stop()
        if self._session is None or self._skip or self._incoming is not None:
            self._receive_deadline.start()
        self._update_call()
        self._process()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.debug("a reader is gone: %s", error)
        self._refuses_requests = True
        self._receive_deadline.stop()
        self._send_deadline.stop()
        self._linger_deadline.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._incoming is not None and self._incoming.buffers is not None:
            self._incoming.buffers.close()
            self._incoming = None
        if self._session is not None:
            self._session.opened_session = None  # unmap the reader's memory now
        if (call := self._call) is not None:
            self._call = None
            call.end()
        self._listener.connection_closed(self)

    # --- reading

    def _process(self) -> None:
        """Process the received bytes, as far as possible."""
        may_read = True
        try:
            while may_read := (
                not self._writing_paused
                and len(self._tasks) < frames.REQUESTS_PER_CONNECTION
                and (not self._refuses_requests or self._incoming is not None)
            ):
                if (incoming := self._incoming) is not None:
                    if incoming.missing:
                        break
                    self._incoming = None
                    self._receive_deadline.stop()
                    self._set_wake_threshold(1)
                    self._begin_request(incoming)
                elif self._skip or self._start == self._end:
                    break
                elif self._session is None:
                    if not self._prove():
                        break
                elif not self._take_frame(self._session):
                    break
        except WireError as error:
            log.debug("a reader sent an invalid frame: %s", error)
            self._listener.recorder.refused(error)
            if self._session is not None:
                self._send_deadline.write(frames.error_frame(0, error))
            self._refuses_requests = True
        self._reading_paused = not (may_read or (self._refuses_requests and self._incoming is None))
        if self._reading_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        if self._refuses_requests:
            self._end_if_done()

    def _prove(self) -> bool:
        """Handle the reader's hello or its proof; return whether to process further bytes."""
        if self._offered is None:
            if (hello := self._consume(frames.HELLO_BYTES)) is None:
                return False
            at = len(frames.MAGIC)
            session = hello[at : at + frames.ID_BYTES]
            readers_challenge = hello[at + frames.ID_BYTES :]
            offered = self._listener.take_offer(session) if hello.startswith(frames.MAGIC) else None
            if offered is None:
                self.abort()
                return False
            challenge = secrets.token_bytes(frames.CHALLENGE_BYTES)
            self._offered, self._challenges = offered, (readers_challenge, challenge)
            self._transport.write(
                challenge + offered.offer.teachers_proof(readers_challenge, challenge)
            )
            return True
        if (proof := self._consume(frames.PROOF_BYTES)) is None:
            return False
        offered = self._offered
        if not hmac.compare_digest(proof, offered.offer.readers_proof(*self._challenges)):
            self.abort()
            return False
        connection = self._socket
        uid = user_behind(connection) if connection.family == socket.AF_UNIX else None
        self._session = TransportSession(self._listener, replace(offered.credentials, uid=uid))
        self._receive_deadline.stop()
        self._listener.connection_proved(self)
        try:
            self._call = self._listener.admission.infer_calls.begin(offered.owner, is_stream=True)
        except RateLimited as error:
            self._listener.recorder.refused(error)
            self._send_deadline.write(frames.error_frame(0, error))
            self._refuses_requests = True
            return False
        self._call.on_evicted = self.leave
        return True

    def _take_frame(self, session: TransportSession) -> bool:
        """Handle one frame; return False if the part before its arrays has not arrived yet."""
        start, arrived = self._start, self._end - self._start
        if arrived < (header_bytes := frames.HEADER.size):
            return False
        header = FrameHeader.unpack(self._staging[start : self._end])
        is_open = header.kind == frames.OPEN and header.nbytes <= frames.MAX_JSON_BYTES
        if not is_open and (header.kind != frames.REQUEST or header.head_bytes > _MAX_HEAD_BYTES):
            raise WireError(f"readers send no frame of kind {header.kind} with these sizes")
        if arrived < (end := header_bytes + (header.nbytes if is_open else header.head_bytes)):
            return False
        content = bytes(self._staging[start + header_bytes : start + end])
        self._start += end
        if is_open:
            session.open(content)
            return True
        if (opened_session := session.opened_session) is None:
            raise WireError("the request came before an OPEN frame")
        if not header.flags & frames.IN_SHARED_MEMORY:
            self._receive(FramedRequest(header, content, opened_session))
        elif header.nbytes:
            raise WireError("the request is in shared memory and announces bytes")
        else:
            assert self._call is not None
            self._call.request_received()
            self._begin_request(FramedRequest(header, content, opened_session))
        return True

    def _consume(self, count: int) -> bytes | None:
        if self._end - self._start < count:
            return None
        taken = bytes(self._staging[self._start : self._start + count])
        self._start += count
        return taken

    def _receive(self, request: FramedRequest) -> None:
        """Allocate memory for the arrays of a request, which come next."""
        header, inputs = request.header, request.opened_session.opened.inputs
        layouts = frames.layouts_of(
            inputs, frames.unpack_shapes(request.head, inputs), header.nbytes
        )
        assert self._call is not None
        try:
            if header.nbytes > (most := self._listener.config.max_message_bytes):
                raise RequestTooLarge(f"a request is larger than max ({header.nbytes} vs. {most})")
            self._call.reserve(sum(self._tasks.values()) + header.nbytes)
            self._call.request_received()  # a call that receives must not be evicted
            memory = self._listener.servicer.pool.inputs
            try:
                request.buffers = InputBuffers(memory, tuple(layouts))
            except OSError as error:
                raise RateLimited(f"no shared memory for the request: {error}") from None
        except EdlError as error:  # concerns this request only
            self._listener.recorder.refused(error)
            self._send_deadline.write(frames.error_frame(header.number, error))
            buffered = min(header.nbytes, self._end - self._start)
            self._start += buffered
            if skip := header.nbytes - buffered:
                self._skip = skip
                self._receive_deadline.start()
            self._update_call()
            return
        arrays = request.buffers.arrays
        request.missing = [
            array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes
        ]
        while request.missing and self._start < self._end:
            count = min(len(request.missing[0]), self._end - self._start)
            request.missing[0][:count] = self._staging[self._start : self._start + count]
            self._start += count
            request.received(count)
        self._incoming = request
        if request.missing:
            self._receive_deadline.start()
            self._set_wake_threshold(min(sum(map(len, request.missing)), _WAKE_BYTES))

    def _set_wake_threshold(self, threshold: int) -> None:
        """Wake the event loop after `threshold` bytes."""
        if not self._encrypted and threshold != self._wake_bytes:
            self._wake_bytes = threshold
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, threshold)

    # --- requests

    def _begin_request(self, request: FramedRequest) -> None:
        assert self._session is not None
        task = asyncio.get_running_loop().create_task(self._session.answer(request))
        self._tasks[task] = request.header.nbytes
        task.add_done_callback(partial(self._served, request.buffers))

    def _served(self, buffers: InputBuffers | None, task: asyncio.Task[bytes]) -> None:
        """Send the answer to a request; if the request ended without one, close the connection."""
        del self._tasks[task]
        if buffers is not None:
            buffers.close()
        if task.cancelled() or (error := task.exception()) is not None:
            self.abort()
            if not task.cancelled():
                log.error("a connection was ended by an unexpected error", exc_info=error)
            return
        if not self._transport.is_closing():
            self._send_deadline.write(task.result())
        self._update_call()
        if self._reading_paused or self._refuses_requests:
            self._process()

    def _update_call(self) -> None:
        """Free the reservations of answered requests; an idle connection may be evicted."""
        if (call := self._call) is None:
            return
        incoming = self._incoming
        reserved_bytes = sum(self._tasks.values(), incoming.header.nbytes if incoming else 0)
        call.table.set_reserved(call, reserved_bytes)
        is_idle = not self._tasks and incoming is None
        if is_idle and not self._writing_paused and not self._refuses_requests:
            call.mark_idle()

    # --- the end

    def _end_if_done(self) -> None:
        """Signal the end, and discard what arrives until the reader closes, at most `_LINGER_S`.

        Closing while data arrives would reset the connection and lose answers on their way.
        """
        if self._tasks or self._incoming is not None or self._is_closing:
            return
        self._is_closing = True
        self._linger_deadline.start()
        if self._transport.can_write_eof():  # not supported with TLS
            with contextlib.suppress(OSError):  # the reader is gone
                self._transport.write_eof()
