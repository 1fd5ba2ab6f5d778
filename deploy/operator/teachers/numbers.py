"""How many teachers coordinators desire: asked in the background, of as many as are looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ....mesh.fleet.service_poller import ServicePoller
from ....proto.security import ClientSecurity

#: Coordinators that are asked at once: each may be one that does not answer.
_AT_ONCE: Final = 16


class Numbers:
    """Keeps what coordinators say; used by one thread.

    Args:
        security: how to call managers; None: neither TLS nor token.
    """

    def __init__(self, security: ClientSecurity | None = None) -> None:
        self._security = security
        self._asked: dict[tuple[str, str], ServicePoller] = {}

    def of(self, url: str, service: str) -> int | None:
        """What the mesh at a Redis URL desires of the operator for a service that is kept.

        Teachers that others have started there are subtracted. None: nobody says it now.
        """
        poller = self._asked.get((url, service))
        return None if poller is None or poller.registered is None else poller.latest

    def keep(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Ask for these, pairs of URL and service, and no others from now on.

        Those that are new are asked for before it returns, so that the first number is no guess.
        """
        kept = set(wanted)
        gone = [self._asked.pop(pair) for pair in list(self._asked) if pair not in kept]
        new = {
            pair: ServicePoller(*pair, self._security)
            for pair in sorted(kept)
            if pair not in self._asked
        }
        _each(ServicePoller.stop, gone)
        _each(ServicePoller.poll, new.values())
        for poller in new.values():
            poller.start()
        self._asked.update(new)

    def stop(self) -> None:
        """Ask no more."""
        self.keep(())


def _each(what: Callable[[ServicePoller], None], pollers: Collection[ServicePoller]) -> None:
    """Many at once: each may be one that takes its time."""
    if pollers:
        with ThreadPoolExecutor(_AT_ONCE, "edl-numbers") as pool:
            for _ in pool.map(what, pollers):
                pass
