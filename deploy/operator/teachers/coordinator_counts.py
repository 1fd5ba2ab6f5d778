"""Numbers of teachers that coordinators want, polled in the background."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ....mesh.agent.teacher_fleet import ServicePoller
from ....proto.security.credentials import ClientSecurity

#: Number of coordinators called in parallel: one that does not answer must not delay all others.
_AT_ONCE: Final = 16


class CoordinatorCounts:
    """Polls coordinators and keeps their latest numbers; use it from one thread.

    Args:
        security: credentials for managers; None: neither TLS nor token.
    """

    def __init__(self, security: ClientSecurity | None = None) -> None:
        self._security = security
        self._pollers: dict[tuple[str, str], ServicePoller] = {}

    def of(self, url: str, service: str) -> int | None:
        """Return the number of teachers that the operator should run for a service; None: unknown.

        Teachers that no operator or fleet started are already subtracted.
        """
        poller = self._pollers.get((url, service))
        return None if poller is None or poller.registered is None else poller.managed_target

    def keep(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Poll these pairs of URL and service, and no others.

        New pairs are polled once before this returns.
        """
        pairs = set(wanted)
        removed = [self._pollers.pop(pair) for pair in list(self._pollers) if pair not in pairs]
        new = {
            pair: ServicePoller(*pair, self._security)
            for pair in sorted(pairs)
            if pair not in self._pollers
        }
        _call_all(ServicePoller.stop, removed)
        _call_all(ServicePoller.poll, new.values())
        for poller in new.values():
            poller.start()
        self._pollers.update(new)

    def stop(self) -> None:
        """Stop all polling."""
        self.keep(())


def _call_all(method: Callable[[ServicePoller], None], pollers: Collection[ServicePoller]) -> None:
    """Call a method of all pollers in parallel, as each call may take long."""
    if pollers:
        with ThreadPoolExecutor(_AT_ONCE, "edl-numbers") as pool:
            for _ in pool.map(method, pollers):
                pass
