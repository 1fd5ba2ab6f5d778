"""The door for callers on this host: `ModelStreamInfer` over a Unix socket.

Whoever registers memory is invited; see `proto/doors.py`. A ticket stands for what its bearer has
shown by that call, which is held against the gate again with each request. It opens while its owner
has memory registered here, to processes of users that could have registered it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ...errors import AccessError, EdlError
from ...proto.doors import Invitation, user_behind
from ..config import ServerConfig
from ..shared_memory.regions import SharedMemory
from .answering import Infer
from .callers import Callers, Shown
from .calls import CallTable
from .guest import Guest

log = logging.getLogger(__name__)

#: Tickets of one owner of memory; that of the oldest invitation makes room.
_TICKETS: Final = 64
#: Connections that have not said their ticket yet; one more is closed.
_STRANGERS: Final = 64


class Door:
    """One teacher's; lives in one event loop.

    Args:
        callers: who may ask.
        calls: where connections have their places, among other calls.
        infer: answers a request of somebody; as `Infer`, behind the length of what goes out.
        refused: told of each request that is not answered.
        config: the limits.
        memory: what callers have registered.
    """

    def __init__(
        self,
        callers: Callers,
        calls: CallTable,
        infer: Callable[[Shown, bytes], Awaitable[bytes]],
        refused: Callable[[EdlError], None],
        config: ServerConfig,
        memory: SharedMemory,
    ) -> None:
        self._callers = callers
        self._infer = infer
        self._memory = memory
        self._name = f"edl-teacher-{secrets.token_hex(16)}"
        self._shown: dict[str, dict[str, Shown]] = {}  # owner -> ticket -> what it stands for
        self._server: asyncio.Server | None = None
        self._strangers: set[Guest] = set()
        self._inside: set[Guest] = set()  # strangers, too
        self._nobody_inside = asyncio.Event()
        self._guest = partial(Guest, self, calls, config)
        self.refused = refused

    def invite(self, shown: Shown) -> tuple[tuple[str, str], ...]:
        """Metadata that tells a caller where the door is.

        None where there is no door, nor for a caller that has no memory registered here.
        """
        owner, owners = self._callers.student(shown).owner, self._memory.owners
        if self._server is None or owner not in owners:
            return ()
        self._shown = {one: tickets for one, tickets in self._shown.items() if one in owners}
        invitation = Invitation.to(self._name)
        mine = self._shown.setdefault(owner, {})
        mine[invitation.ticket] = shown
        if len(mine) > _TICKETS:
            del mine[next(iter(mine))]
        return invitation.metadata()

    async def open(self) -> None:
        """Let callers in from now on, where the system has such sockets."""
        if sys.platform == "linux":
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(self._guest, path=f"\0{self._name}")

    async def close(self, grace_s: float) -> None:
        """Let nobody in; wait up to `grace_s` for the requests of those inside to be answered."""
        if self._server is not None:
            self._server.close()
        for guest in list(self._inside):
            guest.leave()
        if self._inside:
            self._nobody_inside.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nobody_inside.wait(), grace_s)
        for guest in list(self._inside):
            guest.abort()

    # --- told by a guest

    def knocked(self, guest: Guest, connection: Any) -> bool:
        self._inside.add(guest)
        if len(self._strangers) >= _STRANGERS or not _may_come(connection):
            return False
        self._strangers.add(guest)
        return True

    def let_in(self, guest: Guest, ticket: str, connection: Any) -> tuple[str, Infer] | None:
        self._strangers.discard(guest)
        found = next((mine[ticket] for mine in self._shown.values() if ticket in mine), None)
        if found is None:
            return None
        shown = replace(found, uid=user_behind(connection))
        try:
            visitor = self._callers.student(shown)
        except AccessError as error:
            log.debug("a caller at the door is sent away: %s", error)
            return None
        if not self._memory.status(visitor):
            self._shown.pop(visitor.owner, None)  # who shares nothing has no business here
            return None
        return visitor.owner, partial(self._infer, shown)

    def gone(self, guest: Guest) -> None:
        self._strangers.discard(guest)
        self._inside.discard(guest)
        if not self._inside:
            self._nobody_inside.set()


def _may_come(connection: Any) -> bool:
    """Whether the user behind a connection could have shared memory with this process."""
    return os.geteuid() == 0 or user_behind(connection) in (0, os.geteuid())
