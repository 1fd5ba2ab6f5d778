"""Follows the log of a mesh; continues at another manager when one dies."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc

from ...proto import coordinator_pb2 as pb
from ...proto.security import ClientSecurity, open_channel
from ...runtime.errors import AccessError, CoordinatorUnavailable, UnavailableError
from ...scheduler.backoff import delay_s
from ..registry import connect
from ..store.records import log_position
from .discovery import CHANNEL_OPTIONS, begun, call_error, live_managers, stub

log = logging.getLogger(__name__)

_CAP_S: Final = 2.0


def follow_log(
    url: str, service: str, last: int, security: ClientSecurity | None
) -> Iterator[pb.Event]:
    """Yield events of the log, each once; continue at another manager when one dies.

    Args:
        url: Redis URL of the mesh.
        service: name of one service; empty: all.
        last: begin with at most this many existing events; 0: all.
        security: how to call managers; None: neither TLS nor token.

    Raises:
        EdlError: the first call fails: there is no manager, or it refuses the call.
    """
    reader = _LogReader(url, service, last, security)
    rng, attempt = random.Random(), 0
    while True:
        try:
            for event in reader.events():
                attempt = 0
                yield event
        except (UnavailableError, AccessError) as error:
            if not reader.begun:
                raise
            # Warn only if no other manager is found: the death of one is harmless.
            log.log(
                logging.WARNING if attempt == 1 else logging.DEBUG,
                "cannot read the log now; trying again: %s",
                error,
            )
        attempt += 1
        time.sleep(delay_s(attempt, rng, cap_s=_CAP_S))


class _LogReader:
    """Keeps the position in each log, so that another manager repeats no event."""

    def __init__(self, url: str, service: str, last: int, security: ClientSecurity | None) -> None:
        self.begun = False
        self._url = url
        self._service = service
        self._last = last
        self._security = security
        self._seen: dict[str, tuple[int, int]] = {}
        self._first_ms = 0

    def events(self) -> Iterator[pb.Event]:
        """Yield the events of one manager that were not yielded before."""
        # Later calls read all existing events, which include the missed ones.
        last = 0 if self.begun else self._last
        request = pb.WatchRequest(service=self._service, last=last, follow=True)
        for address in self._addresses():
            with open_channel(address, self._security, CHANNEL_OPTIONS) as channel:
                call = stub(channel).Watch(request)
                try:
                    begun(call, address)
                except CoordinatorUnavailable as error:
                    failure = error
                    continue
                self.begun = True
                yield from self._new(call, address)
                return
        raise failure

    def _addresses(self) -> list[str]:
        registry = connect(self._url)
        try:
            addresses = live_managers(registry)
        finally:
            registry.close()
        random.shuffle(addresses)
        return addresses

    def _new(self, call: Any, address: str) -> Iterator[pb.Event]:
        try:
            for event in call:
                place = log_position(event.id)
                if place > self._seen.get(event.service, (self._first_ms, -1)):
                    self._first_ms = self._first_ms or event.time_ms
                    self._seen[event.service] = place
                    yield event
        except grpc.RpcError as error:
            raise call_error(address, error) from None
