"""The method Watch: what lies in the log, then what comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from ...errors import RetryableError, WireError
from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ..calling.discovery import VERSION_METADATA
from ..limits import Limits, Places
from ..manager.messages import event_message
from ..registry import Registry, keys
from ..store.records import log_position
from .calls import in_thread
from .door import Context, Door, parsed
from .log_tail import LogTail, Said, in_order

#: Seconds within which a watcher whose credential was withdrawn hears nothing more.
_CHECK_S: Final = 1.0


class Watching:
    """Sends the log to those who watch it.

    Args:
        registry: where the logs are.
        door: who is let in.
        limits: how many at once.
    """

    def __init__(self, registry: Registry, door: Door, limits: Limits) -> None:
        self._registry = registry
        self._door = door
        self._limits = limits
        self._tail = LogTail(registry)
        self._places = Places("watchers of the log", limits.watchers, limits.watchers_per_principal)

    async def stop(self) -> None:
        """End the reading of the log."""
        await self._tail.stop()

    async def handle(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one call."""
        caller = await self._door.admit(context, "viewer")
        try:
            with self._places.one(caller.principal):
                data = await self._door.first(requests)
                if data is None:  # cut short, or above what gRPC itself takes
                    raise WireError("the call ended without a whole request")
                request = parsed(pb.WatchRequest(), data)
                if request.service:
                    keys.check_service(request.service)
                await self._serve(request, context)
        except Exception as error:
            await self._door.refuse(context, error)

    async def _serve(self, request: pb.WatchRequest, context: Context) -> None:
        # At once: by that a follower knows that this manager does not hang.
        await context.send_initial_metadata(((VERSION_METADATA, str(PROTOCOL_VERSION)),))
        if not request.follow:
            _, past = await in_thread(self._past, request)
            await self._write(context, past)
            return
        with self._tail.listening(request.service) as listener:
            # Only then what lies there already: between both, nothing is missed.
            sent, past = await in_thread(self._past, request)
            before_all = log_position("")
            await self._write(context, past)
            while True:
                self._door.check_again(context, "viewer")
                try:
                    async with asyncio.timeout(_CHECK_S):
                        service, entry = await listener.next()
                except TimeoutError:
                    continue
                place = log_position(entry.id)
                if place > sent.get(service, before_all):
                    sent[service] = place
                    await self._write(context, [(service, entry)])

    def _past(self, request: pb.WatchRequest) -> tuple[dict[str, tuple[int, int]], list[Said]]:
        """How far each log has been read, and the entries to send of them."""
        services = [request.service] if request.service else self._registry.logs()
        logs = {each: self._registry.events(each, last=request.last) for each in services}
        read = {each: log_position(log[-1].id) for each, log in logs.items() if log}
        said = [(service, entry) for service, log in logs.items() for entry in log]
        return read, in_order(said)[-request.last :]  # 0: all

    async def _write(self, context: Context, said: Iterable[Said]) -> None:
        try:
            for service, entry in said:
                async with asyncio.timeout(self._limits.write_s):
                    await context.write(event_message(service, entry).SerializeToString())
        except TimeoutError:
            raise RetryableError("the watcher does not take the events") from None
