"""Leader election: of several operators, only the holder of a Lease in the cluster acts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ...mesh.kubernetes.client import Client
from ...mesh.kubernetes.resources import APP, LEASE, PART_OF_LABEL, Object, rfc3339
from ...runtime.errors import (
    EdlError,
    KubernetesObjectChanged,
    KubernetesObjectMissing,
    LeaseSuperseded,
)
from ...runtime.lifecycle import Periodic
from ...scheduler.leadership import (
    RENEWAL_SHARE,
    Lease,
    LeaseView,
    lease_action,
    may_act,
    view_after_read,
    view_after_write,
)
from .error_log import ErrorLog

log = logging.getLogger(__name__)

#: HTTP methods that only the leader may use.
_WRITING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def _boot_time_s() -> float:
    """Return seconds since the machine booted, including time asleep if the OS counts it."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseElection:
    """A candidate for leadership. `leads` and `check` may be called from any thread.

    Args:
        client: used for nothing else, so that other slow requests delay no renewal.
        name: name of the Lease.
        me: identity of this candidate, unique for each process.
        duration_s: another candidate takes over if the lease is not renewed for so long; >= 1.
        on_change: called after leadership was gained or lost, in the thread of `renew` or `stop`.
        clock: returns seconds that never go back and that pass while the machine sleeps.
        now: returns seconds since 1970.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        me: str,
        duration_s: int = 15,
        on_change: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = _boot_time_s,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._name = name
        self._me = me
        self._duration_s = duration_s
        self._on_change = on_change
        self._clock = clock
        self._now = now
        self._view = LeaseView()
        self._led = False
        self._errors = ErrorLog()
        self._lock = threading.Lock()  # held while the lease is renewed or released
        self._renewal = Periodic("edl-lease", duration_s * RENEWAL_SHARE, self.renew)

    def leads(self) -> bool:
        """Return whether this operator may act now."""
        return may_act(self._view, self._clock())

    def check(self, method: str, path: str) -> None:
        """Reject requests that change something, unless this operator leads; a hook for `Client`.

        Raises:
            LeaseSuperseded: this operator does not lead.
        """
        if method in _WRITING and not self.leads():
            raise LeaseSuperseded(f"{self._me} no longer leads: {method} {path} is not sent")

    def start(self) -> None:
        """Start the thread that acquires and renews the lease; call it once."""
        self._renewal.start()

    def stop(self) -> None:
        """Stop, and release the lease so that another operator takes over at once; idempotent."""
        self._renewal.stop()
        with self._lock:
            try:
                self._release()
            except EdlError as error:
                log.warning("cannot release the lease: %s", error)
        self._notify()

    def renew(self) -> None:
        """Read the lease, and acquire or renew it if it is free or this operator's."""
        with self._lock:
            try:
                self._renew()
            except KubernetesObjectChanged:
                log.debug("another operator changed the lease first")
            except EdlError as error:
                self._errors.report(log, self._name, "cannot renew or acquire the lease", error)
            else:
                self._errors.clear(self._name)
        self._notify()

    def _renew(self) -> None:
        began_s = self._clock()
        stored = self._client.find(LEASE, self._name)
        lease = None if stored is None else _lease(stored)
        self._view = view_after_read(self._view, lease, self._me, self._clock())
        if lease_action(self._view, self._me, self._clock()) == "wait":
            return
        renewed = self._renewed(stored)
        if stored is None:
            written = self._client.create(LEASE, renewed)
        else:
            written = self._client.replace(LEASE, renewed)
        # If leadership lapsed during the write, count it as lost: then `_notify` reports that it is
        # regained.
        self._led = self._led and self.leads()
        self._view = view_after_write(self._view, _lease(written), self._me, began_s)

    def _release(self) -> None:
        view, self._view = self._view, LeaseView()
        if view.lease is None or view.renewed_s is None:
            return
        try:
            stored = self._client.get(LEASE, self._name)
            if stored["spec"].get("holderIdentity") == self._me:
                stored["spec"].update(holderIdentity="", leaseDurationSeconds=1)
                self._client.replace(LEASE, stored)
        except (KubernetesObjectChanged, KubernetesObjectMissing):
            return  # another operator has taken it, or it was deleted

    def _notify(self) -> None:
        leading = self.leads()
        if leading != self._led:
            self._led = leading
            log.info("this operator (%s) %s", self._me, "leads" if leading else "no longer leads")
            self._on_change()

    def _renewed(self, stored: Object | None) -> Object:
        """Return the stored lease, or a new one, with this candidate as its holder."""
        lease = stored or {"metadata": {"name": self._name, "labels": {PART_OF_LABEL: APP}}}
        spec: dict[str, Any] = lease.setdefault("spec", {})
        now = rfc3339(self._now())
        if spec.get("holderIdentity") != self._me:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
        spec.update(holderIdentity=self._me, leaseDurationSeconds=self._duration_s, renewTime=now)
        return lease


def _lease(stored: Object) -> Lease:
    spec = stored.get("spec", {})
    return Lease(
        stored["metadata"]["resourceVersion"],
        spec.get("holderIdentity") or "",
        float(spec.get("leaseDurationSeconds") or 1),
    )
