"""A client whose batches stay where they are, for a server on this host: only their places travel.

It speaks the system-shared-memory extension of the Open Inference Protocol: the arena is registered
as a region, once and again when it has grown (the last two stand), and a request names places in
it. Labels always come back in the message. A server that does not take part, as it is elsewhere,
runs as another user or does not know such memory, gets the bytes as ever, and is not asked again
over this connection.

That the server looks at this very memory is proved by its first answer, as it refuses a place that
has not the generation it was told. Until then a request that fails is sent again as bytes.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...errors import (
    DeadlineExceeded,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    WireError,
)
from ..datatypes import to_bytes
from ..lent_arena import Lent, LentArena
from ..places import Place
from ..prepared import Prepared, is_led
from ..stacked import Input, Stacked
from .client import Answer, Found, Request
from .http_way import Shut
from .near_line import NearLine
from .oip_grpc import OipGrpcClient

log = logging.getLogger(__name__)

#: For the goodbye, which nobody should wait for.
_GOODBYE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Region:
    name: str
    nbytes: int


class SameHostClient:
    """A `Client` of one model, around that of gRPC.

    Args:
        inner: sends the requests.
        arena: where batches lie; arrays that lie elsewhere travel.
    """

    def __init__(self, inner: OipGrpcClient, arena: LentArena) -> None:
        self._inner = inner
        self._arena = arena
        self._lock = threading.Lock()
        self._region: _Region | None = None
        self._registered: list[str] = []
        self._off = False
        self._proved = False
        self._lost = False
        self._prepared: Prepared | None = None  # the latest request by a near line

    @property
    def in_place(self) -> bool:
        """Whether batches stay where they are."""
        return self._region is not None and not self._off

    def probe(self, timeout_s: float) -> Found:
        until_s = time.monotonic() + timeout_s
        found = self._inner.probe(timeout_s)
        with self._lock:
            self._register(until_s)
        return found

    def infer(self, request: Request, timeout_s: float) -> Answer:
        until_s = time.monotonic() + timeout_s
        if not (places := self._places(request, until_s)):
            return self._inner.infer(request, _left_s(until_s))
        try:
            answer = self._inner.infer(request, _left_s(until_s), places)
        except Shut as error:
            self._missed(next(iter(places.values())).region, error)
            return self._inner.infer(request, _left_s(until_s))
        except TeacherLost:
            self._lost = True
            raise
        except RateLimited:
            raise
        except (RequestRefused, RetryableError) as error:
            region = next(iter(places.values())).region
            if self._proved and not self._forgotten(region, error, until_s):
                raise
            if until_s <= time.monotonic():  # it answers, so it is not lost
                raise
            answer = self._inner.infer(request, _left_s(until_s))
            self._missed(region, error)
        else:
            self._proved = True
        return answer

    def near_line(self) -> NearLine | None:
        """A line for what `near_message` makes; None where batches travel, or there is no door."""
        return self._inner.near_line() if self._proved and self.in_place else None

    def near_message(
        self, request: Request, timeout_s: float, lent: Mapping[str, Lent]
    ) -> bytes | None:
        """The request as it goes over a near line; None: it has to be asked by `infer`.

        It waits for nothing: the server must have proved that it looks at our memory, and know all
        of it that the inputs lie in. One thread calls it.

        Args:
            request: what is asked.
            timeout_s: seconds that the server has for it.
            lent: where all the inputs lie at this moment, if that is known; else it is found out.
        """
        region, inputs = self._region, request.inputs
        if self._off or not self._proved or region is None:
            return None
        lying = lent or self._lying(inputs)
        if len(lying) < len(inputs) or not _reaches(region, inputs, lying):
            return None
        layout = [(n, one.dtype, one.shape, is_led(lying[n])) for n, one in inputs.items()]
        kind = (region, timeout_s, layout, *request[1:2], *request[3:5])
        if (prepared := self._prepared) is None or prepared.kind != kind:
            try:
                message = self._inner.message(request, timeout_s, _places_in(region, inputs, lying))
            except RequestRefused:
                return None
            prepared = self._prepared = Prepared(kind, message)
        return prepared.message(request.request_id, [lying[name] for name in inputs])

    def close(self) -> None:
        until_s = time.monotonic() + _GOODBYE_S
        if not self._lost:
            self._unregister(self._registered, until_s)
        self._registered = []
        self._inner.close()

    def _places(self, request: Request, until_s: float) -> Mapping[str, Place]:
        """Of the inputs that lie in the arena, as far as the server knows it."""
        if self._off:
            return {}
        inputs = request.inputs
        if not (lying := self._lying(inputs)):
            return {}
        with self._lock:
            if not _reaches(self._region, inputs, lying):
                self._register(until_s)
            return _places_in(self._region, inputs, lying)

    def _lying(self, inputs: Mapping[str, Input]) -> Mapping[str, Lent]:
        """Where those inputs are that lie in the arena."""
        found = {name: self._where(value) for name, value in inputs.items()}
        return {name: lent for name, lent in found.items() if lent is not None}

    def _where(self, value: Input) -> Lent | None:
        if isinstance(value, Stacked) or value.dtype.hasobject:
            return None
        try:
            return self._arena.lent(to_bytes(value))
        except WireError:  # it cannot be sent either, which is `inner`'s to say
            return None

    def _register(self, until_s: float) -> None:
        """Tell the server of the arena, as large as it is now."""
        nbytes = self._arena.size_bytes
        if self._off or (self._region is not None and self._region.nbytes == nbytes):
            return
        region = _Region(f"edl-{secrets.token_hex(8)}", nbytes)
        try:
            self._inner.register_memory(region.name, self._arena.key, nbytes, _left_s(until_s))
        except EdlError as error:
            log.info("batches travel, as the server does not take them in place: %s", error)
            self._off = True
        else:
            self._region = region
            self._registered.append(region.name)
            # The one before it stays: requests that name it may be on their way.
            older, self._registered = self._registered[:-2], self._registered[-2:]
            self._unregister(older, until_s)

    def _unregister(self, regions: Sequence[str], until_s: float) -> None:
        for name in regions:
            with contextlib.suppress(EdlError):
                self._inner.unregister_memory(name, _left_s(until_s))

    def _forgotten(self, region: str, error: EdlError, until_s: float) -> bool:
        """Whether `error` is because the server has let the region go, as after a long pause."""
        if not isinstance(error, RequestRefused):
            return False
        try:
            return not self._inner.knows_memory(region, _left_s(until_s))
        except EdlError:
            return False

    def _missed(self, region: str, error: Exception) -> None:
        """The server does by bytes what it could not by places in `region`."""
        with self._lock:
            if self._region is not None and self._region.name == region:
                self._region = None  # to be registered again
            if not self._proved and not self._off:
                log.warning("batches travel from now on, as they fail in place: %s", error)
                self._off = True


def _reaches(
    region: _Region | None, inputs: Mapping[str, Input], lying: Mapping[str, Lent]
) -> bool:
    """Whether what lies there is all within what a server knows as `region`."""
    return region is not None and all(
        lent.offset + inputs[name].nbytes <= region.nbytes for name, lent in lying.items()
    )


def _places_in(
    region: _Region | None, inputs: Mapping[str, Input], lying: Mapping[str, Lent]
) -> Mapping[str, Place]:
    """What names these to a server that knows `region`; nothing where one lies beyond it."""
    if region is None or not _reaches(region, inputs, lying):
        return {}
    return {
        name: Place(region.name, lent.offset, inputs[name].nbytes, *lent[1:])
        for name, lent in lying.items()
    }


def _left_s(until_s: float) -> float:
    if (left_s := until_s - time.monotonic()) <= 0:
        raise DeadlineExceeded("the time that there was for an answer is over")
    return left_s
