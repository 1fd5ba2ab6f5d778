"""One connection of a reader: its proof, its requests, and their answers in any order.

Arrays that travel are received into the memory that the predictors read; they are copied no more.
While so many requests are in work as there may be, no more is read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ...errors import EdlError, RateLimited, RetryableError, WireError
from ...proto.arena import Array, Record
from ...proto.datatypes import datatype_of, from_bytes, nbytes_of
from ...proto.places import Place
from ...proto.tensors import Heavy
from ...proto.transport import frames, offer
from ...proto.transport.frames import Header, Opened
from .. import access_log
from ..front.callers import Shown
from ..front.calls import Call
from ..in_thread import in_thread
from ..refusals import TooLarge
from ..servicer import Request, Response
from ..shared_memory.reading import Reading
from ..shared_memory.visitors import Visitor

if TYPE_CHECKING:
    from .listener import Session, TransportListener

log = logging.getLogger(__name__)

#: Requests in work at a time.
AT_ONCE: Final = 8
#: What is read before it is known what it is; a frame's head and JSON have to fit.
_STAGING_BYTES: Final = frames.HEADER.size + frames.MAX_JSON_BYTES
_MAX_HEAD_BYTES: Final = frames.MAX_ARRAYS * (8 * frames.MAX_NDIM + frames.PLACE.size)
_SEND_BYTES: Final = 1 << 20
#: While arrays come, the loop is woken for so many bytes, or for what is missing.
_WAKE_BYTES: Final = 512 << 10
#: Parameters of an answer that stand in the header of its frame.
_OF_EACH_RESULT: Final = ("device_seconds", "draining")


class _Fixed(NamedTuple):
    """What the latest OPEN frame has fixed for the requests behind it.

    Attributes:
        opened: as it was read.
        region: of shared memory; empty: there is none.
        memory_error: why there is none, where one was asked for.
    """

    opened: Opened
    region: str
    memory_error: EdlError | None


class _Incoming:
    """A request whose arrays are on their way into the predictors' memory."""

    def __init__(self, header: Header, record: Record, arrays: list[Array]) -> None:
        self.header, self.record, self.arrays = header, record, arrays
        self._left = [array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes]

    def room(self) -> memoryview:
        return self._left[0]

    def fill(self, data: memoryview) -> int:
        """Take the beginning of what came; how many bytes that is."""
        taken = 0
        while self._left and taken < len(data):
            count = min(len(self._left[0]), len(data) - taken)
            self._left[0][:count] = data[taken : taken + count]
            taken += count
            self.filled(count)
        return taken

    def filled(self, count: int) -> None:
        rest = self._left[0][count:]
        self._left[:1] = [rest] if len(rest) else []

    @property
    def is_whole(self) -> bool:
        return not self._left

    @property
    def missing(self) -> int:
        """Bytes that have not come."""
        return sum(map(len, self._left))


class Connection(asyncio.BufferedProtocol):
    """Lives in the event loop.

    Args:
        listener: whose it is.
    """

    def __init__(self, listener: TransportListener) -> None:
        self._listener = listener
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._begin = self._end = 0
        self._session: Session | None = None  # named, and perhaps not proved yet
        self._challenges = b"", b""
        self._proved = False
        self._shown: Shown | None = None
        self._fixed: _Fixed | None = None
        self._regions: list[str] = []  # the last one is in use, and those before it may be
        self._incoming: _Incoming | None = None
        self._described: tuple[object, ...] = ()  # what the reader knows of results
        self._call: Call | None = None
        self._tasks: dict[asyncio.Task[None], int] = {}  # -> bytes of the request
        self._stuck = False
        self._over = False  # nothing more is read
        self._late: asyncio.TimerHandle | None = None
        self._encrypted = False
        self._least = 1  # bytes that have to be there before the loop is woken

    def leave(self) -> None:
        """End the connection once what was asked is answered."""
        if not self._proved:
            self.abort()
        elif not self._over:
            self._over = True
            self._transport.write(frames.goodbye())
            self._end_if_done()

    def abort(self) -> None:
        """End it now."""
        self._over = True
        self._transport.abort()

    # --- called by the transport of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # It says so when anything does not go out; at a limit of 0 TLS would always say so.
        transport.set_write_buffer_limits(high=1, low=0)
        connection = transport.get_extra_info("socket")
        # What TLS has read ahead counts for no mark of the socket; Unix sockets have none.
        self._encrypted = transport.get_extra_info("ssl_object") is not None
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._listener.came(self)
        self._abort_in_time()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._incoming is not None:
            return self._incoming.room()
        if self._begin:
            rest = self._end - self._begin
            self._staging[:rest] = bytes(self._staging[self._begin : self._end])
            self._begin, self._end = 0, rest
        return self._staging[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._incoming is not None:
            self._incoming.filled(nbytes)
            self._wake_at(self._incoming.missing)
        else:
            self._end += nbytes
        self._go_on()

    def _wake_at(self, missing: int) -> None:
        """Be woken once so many bytes are there, or many; once any are where none are missing."""
        least = min(missing, _WAKE_BYTES) or 1
        if self._encrypted or least == self._least:
            return
        self._least = least
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def pause_writing(self) -> None:
        self._stuck = True
        self._abort_in_time()

    def resume_writing(self) -> None:
        self._stuck = False
        self._in_time()
        self._owe()
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.debug("a reader is gone: %s", error)
        self._over = True
        self._in_time()
        for task in list(self._tasks):
            task.cancel()
        if self._incoming is not None:
            self._free(self._incoming.record)
            self._incoming = None
        self._forget(self._regions)
        if (call := self._call) is not None:
            self._call = None
            call.on_evicted = _nothing
            self._listener.calls.end(call)
        self._listener.gone(self)

    # --- reading

    def _go_on(self) -> None:
        """Do what can be done with what has come."""
        try:
            while not self._over and not self._stuck and len(self._tasks) < AT_ONCE:
                if not self._step():
                    break
        except (TooLarge, RateLimited) as error:
            self._listener.refused(error)
            self._refuse(0, error)
        except WireError as error:
            log.debug("a reader sends no frames: %s", error)
            self._listener.refused(error)
            self._refuse(0, error)
        if self._over:
            self._end_if_done()
        elif self._stuck or len(self._tasks) >= AT_ONCE:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _step(self) -> bool:
        """Take one thing that is there as a whole; False: there is none."""
        if not self._proved:
            return self._prove()
        if (incoming := self._incoming) is not None:
            self._begin += incoming.fill(self._staging[self._begin : self._end])
            if not incoming.is_whole:
                self._wake_at(incoming.missing)
                return False
            self._incoming = None
            self._in_time()
            self._begin_request(incoming.header, incoming)
            return True
        return self._take_frame()

    def _prove(self) -> bool:
        if self._session is None:
            if (hello := self._take(offer.HELLO_BYTES)) is None:
                return False
            at = len(offer.MAGIC)
            name, readers = hello[at : at + offer.ID_BYTES], hello[at + offer.ID_BYTES :]
            session = self._listener.take(name) if hello.startswith(offer.MAGIC) else None
            if session is None:
                self.abort()
                return False
            teachers = secrets.token_bytes(offer.CHALLENGE_BYTES)
            self._session, self._challenges = session, (readers, teachers)
            self._transport.write(teachers + session.offer.teachers_proof(readers, teachers))
            return True
        if (proof := self._take(offer.PROOF_BYTES)) is None:
            return False
        session = self._session
        if not offer.same(proof, session.offer.readers_proof(*self._challenges)):
            self.abort()
            return False
        from .listener import uid_of

        connection = self._transport.get_extra_info("socket")
        self._shown = replace(session.shown, uid=uid_of(connection))
        self._proved = True
        self._in_time()
        self._listener.known(self)
        self._call = self._listener.calls.begin(session.owner, is_stream=True)
        self._call.on_evicted = self.leave
        return True

    def _take_frame(self) -> bool:
        assert self._call is not None
        have = self._end - self._begin
        if have < frames.HEADER.size:
            return False
        header = Header.unpack(self._staging[self._begin : self._end])
        if header.kind == frames.OPEN and header.nbytes <= frames.MAX_JSON_BYTES:
            whole = frames.HEADER.size + header.nbytes
            if have < whole:
                return False
            frame = self._take(whole)
            assert frame is not None
            self._open(frame[frames.HEADER.size :])
            return True
        if header.kind != frames.REQUEST or header.head_bytes > _MAX_HEAD_BYTES:
            raise WireError(f"a frame of kind {header.kind} that no reader sends")
        if have < frames.HEADER.size + header.head_bytes:
            return False
        self._begin += frames.HEADER.size
        head = self._take(header.head_bytes)
        assert head is not None
        if header.flags & frames.IN_MEMORY:
            self._begin_request(header, head)
        else:
            self._receive(header, head)
        return True

    def _take(self, count: int) -> bytes | None:
        if self._end - self._begin < count:
            return None
        taken = bytes(self._staging[self._begin : self._begin + count])
        self._begin += count
        return taken

    def _receive(self, header: Header, head: bytes) -> None:
        """Make room for the arrays of a request, which come next."""
        assert self._call is not None
        opened = self._require_fixed().opened
        if header.nbytes > (most := self._listener.config.max_message_bytes):
            raise TooLarge(f"a request is larger than max ({header.nbytes} vs. {most})")
        shapes = frames.shapes_in(head, opened.inputs)
        layouts = frames.layouts_of(opened.inputs, shapes, header.nbytes)
        held = sum(self._tasks.values())
        self._listener.calls.announced(self._call, held + header.nbytes)
        memory = self._listener.servicer.memory_of_inputs
        try:
            record = memory.allocate(layouts)
            self._incoming = _Incoming(header, record, [memory.get(ref) for ref in record.arrays])
        except OSError as error:
            raise RateLimited(f"no shared memory for the request: {error}") from None
        if not self._incoming.is_whole:
            self._abort_in_time()

    # --- sessions

    def _open(self, payload: bytes) -> None:
        opened = Opened.read(payload)
        region, failed = "", None
        if opened.memory_key:
            region = f"edl-{secrets.token_hex(8)}"
            try:
                self._listener.servicer.memory.register(
                    self._visitor(), region, opened.memory_key, offset=0, nbytes=opened.memory_bytes
                )
            except EdlError as error:
                region, failed = "", error
            else:
                self._regions.append(region)
        self._fixed = _Fixed(opened, region, failed)
        self._described = ()

    def _require_fixed(self) -> _Fixed:
        if self._fixed is None:
            raise WireError("a request before its session was opened")
        return self._fixed

    def _forget(self, regions: list[str]) -> None:
        """Let go of shared memory that no request of this connection uses any more."""
        for region in regions:
            try:
                self._listener.servicer.memory.unregister(self._visitor(), region)
            except EdlError as error:
                log.debug("memory of who may not ask any more is swept later: %s", error)
        regions.clear()

    def _visitor(self) -> Visitor:
        assert self._shown is not None
        return self._listener.callers.student(self._shown)

    # --- requests

    def _begin_request(self, header: Header, what: _Incoming | bytes) -> None:
        assert self._call is not None
        if not self._tasks:
            self._listener.calls.received(self._call)
        fixed = self._require_fixed()  # another OPEN may come before the task begins
        task = asyncio.get_running_loop().create_task(self._serve(header, what, fixed))
        self._tasks[task] = header.nbytes
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled() or task.exception() is not None:
            self.abort()
            return
        if not self._tasks and len(self._regions) > 1:
            older, self._regions = self._regions[:-1], self._regions[-1:]
            self._forget(older)
        self._owe()
        self._go_on()

    async def _serve(self, header: Header, what: _Incoming | bytes, fixed: _Fixed) -> None:
        record = what.record if isinstance(what, _Incoming) else None
        try:
            answer = await self._answer(header, what, fixed)
        except EdlError as error:
            self._listener.refused(error)
            memory_failed = record is None and not fixed.region
            answer = frames.error(header.number, error, memory=memory_failed)
        except Exception as error:
            log.exception("a request could not be answered")
            why = RetryableError(f"{type(error).__name__}: {error}")
            answer = frames.error(header.number, why)
        finally:
            if record is not None:
                self._free(record)
        if not self._transport.is_closing():
            self._transport.write(answer)

    async def _answer(self, header: Header, what: _Incoming | bytes, fixed: _Fixed) -> bytes:
        shown = self._shown
        assert shown is not None
        protocol = "tcp" if shown.uid is None else "local"
        with access_log.call(protocol, "Label", lambda: self._address(shown)) as entry:
            visitor = self._listener.callers.student(shown)
            nbytes = header.nbytes or header.head_bytes
            entry.received(nbytes)
            with self._listener.metrics.request(nbytes) as request:
                decode = partial(self._decode, header, what, fixed)
                encode = partial(self._encode, header)
                deadline_s = time.monotonic() + header.seconds if header.seconds > 0 else None
                refs = what.record.arrays if isinstance(what, _Incoming) else None
                answer = await self._listener.servicer.infer(
                    decode, encode, visitor, deadline_s, entry, refs
                )
                request.answered(len(answer))
            entry.sent(len(answer))
            return answer

    async def _decode(
        self, header: Header, what: _Incoming | bytes, fixed: _Fixed, reading: Reading
    ) -> Request:
        opened = fixed.opened
        if isinstance(what, _Incoming):
            arrays = what.arrays
            for tensor, array in zip(opened.inputs, arrays, strict=True):
                if tensor.datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
                    raise WireError(
                        f"input {tensor.name!r} is BOOL and holds other bytes than 0 and 1"
                    )
        else:
            if fixed.memory_error is not None:
                raise fixed.memory_error
            arrays = await self._in_memory(what, fixed, reading)
        return Request(
            model_name=opened.model,
            request_id=f"{opened.caller}#{header.number}" if opened.caller else "",
            parameters=dict(opened.parameters),
            inputs={t.name: array for t, array in zip(opened.inputs, arrays, strict=True)},
            outputs=opened.outputs,
            output_parameters={name: dict(own) for name, own in opened.output_parameters.items()},
        )

    async def _in_memory(self, head: bytes, fixed: _Fixed, reading: Reading) -> list[Array]:
        """The inputs where they lie in the reader's memory; copied where they have to be."""
        opened = fixed.opened
        shapes = frames.shapes_in(head, opened.inputs)
        at = frames.head_bytes_of(opened.inputs)
        if len(head) != at + frames.PLACE.size * len(shapes):
            raise WireError("a request in shared memory without a place for each input")
        arrays = []
        for tensor, shape in zip(opened.inputs, shapes, strict=True):
            offset, generation, generation_offset = frames.PLACE.unpack_from(head, at)
            at += frames.PLACE.size
            nbytes = nbytes_of(tensor.datatype, shape) or 0
            place = Place(fixed.region, offset, nbytes, generation, generation_offset)
            if not place.is_possible:
                raise WireError(f"input {tensor.name!r} has an impossible place")
            try:
                data = reading.read_in_place(place)
            except Heavy:
                data = await in_thread(reading.read, place)
            arrays.append(from_bytes(data, tensor.datatype, shape))
        return arrays

    async def _encode(
        self, header: Header, request: Request, response: Response, elsewhere: Collection[str]
    ) -> bytes:
        del request, elsewhere
        pieces = frames.result(
            header.number,
            response.outputs,
            self._describe(response),
            device_s=float(response.parameters["device_seconds"]),
            draining=bool(response.parameters["draining"]),
        )
        return b"".join(pieces)

    def _describe(self, response: Response) -> bytes:
        """What the reader has to be told of the answer; empty where it knows that already."""
        said, told = response.parameters, response.output_parameters
        known = (
            [(name, array.dtype, array.ndim) for name, array in response.outputs.items()],
            told,
            said["content_id"],
            said["numerics_id"],
        )
        if known == self._described:
            return b""
        self._described = known
        outputs = tuple(
            frames.Tensor(name, datatype_of(array.dtype), array.ndim, told.get(name, {}))
            for name, array in response.outputs.items()
        )
        fixed = {name: value for name, value in said.items() if name not in _OF_EACH_RESULT}
        return frames.Description(outputs, fixed).to_bytes()

    # ---

    def _address(self, shown: Shown) -> str:
        return Visitor.of_peer("", shown.peer).address

    def _free(self, record: Record) -> None:
        self._listener.servicer.memory_of_inputs.free(record.offset)

    def _refuse(self, number: int, error: EdlError) -> None:
        """Nothing more is read, and why is said."""
        if self._proved:
            self._transport.write(frames.error(number, error))
        self._over = True

    def _end_if_done(self) -> None:
        if not self._tasks:
            self._transport.close()  # once all is out

    def _owe(self) -> None:
        """What was asked has been answered: the next request is owed."""
        if self._call is not None and not self._tasks and not self._stuck and not self._over:
            self._listener.calls.announced(self._call, 0)
            self._listener.calls.owes(self._call)

    def _abort_in_time(self) -> None:
        """End the connection unless `_in_time` is called within the time for a request."""
        if self._late is None:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._listener.config.receive_s, self.abort)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _nothing() -> None:
    """For a call that is over."""
