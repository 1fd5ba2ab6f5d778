"""Which of several operators acts: the one that holds a Lease of the cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ...mesh.kubernetes.client import Client
from ...mesh.kubernetes.resources import APP, LEASE, PART_OF_LABEL, Object, rfc3339
from ...runtime.errors import EdlError, LeaseSuperseded, ObjectChanged, ObjectMissing
from ...runtime.lifecycle import Periodic
from ...scheduler.leadership import (
    RENEWING,
    Lease,
    LeaseView,
    lease_action,
    lease_read,
    lease_written,
    may_act,
)
from .error_log import ErrorLog

log = logging.getLogger(__name__)

#: Methods that change something.
_WRITING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def _seconds() -> float:
    """Since the machine has started; where that is not known, without those that it slept."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseElection:
    """One candidate for the lead; any number of threads may ask whether it leads.

    Args:
        client: of its own, so that a slow answer to the loop delays no renewal.
        name: of the Lease.
        me: the candidate's own name, another one with each start.
        duration_s: after so long without a sign of life another one takes the lead; >= 1.
        on_change: called, in the thread that looks, when it leads from now on or no more.
        clock: seconds that do not go back, and pass while the machine sleeps.
        now: seconds since 1970.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        me: str,
        duration_s: int = 15,
        on_change: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = _seconds,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._name = name
        self._me = me
        self._duration_s = duration_s
        self._on_change = on_change
        self._clock = clock
        self._now = now
        self._sight = LeaseView()
        self._led = False
        self._errors = ErrorLog()
        self._lock = threading.Lock()  # of looking and giving back
        self._beat = Periodic("edl-lease", duration_s * RENEWING, self.look)

    def leads(self) -> bool:
        """Whether this one may act now."""
        return may_act(self._sight, self._clock())

    def check(self, method: str, path: str) -> None:
        """A client's hook: refuses what changes something while another one may lead.

        Raises:
            LeaseSuperseded: this operator does not lead.
        """
        if method in _WRITING and not self.leads():
            raise LeaseSuperseded(f"{self._me} leads no more: {method} {path} is not sent")

    def start(self) -> None:
        """Begin to renew, or to wait; once only."""
        self._beat.start()

    def stop(self) -> None:
        """End, and give the lease back so that nobody waits for its end; again without effect."""
        self._beat.stop()
        with self._lock:
            try:
                self._give_back()
            except EdlError as error:
                log.warning("the lead could not be given back: %s", error)
        self._note()

    def look(self) -> None:
        """Read the lease, and take or renew it if it is time to."""
        with self._lock:
            try:
                self._look()
            except ObjectChanged:
                log.debug("another operator was faster")
            except EdlError as error:
                self._errors.report(log, self._name, "the lead cannot be kept or sought", error)
            else:
                self._errors.clear(self._name)
        self._note()

    def _look(self) -> None:
        began_s = self._clock()
        found = self._client.find(LEASE, self._name)
        lease = None if found is None else _lease(found)
        self._sight = lease_read(self._sight, lease, self._me, self._clock())
        match lease_action(self._sight, self._me, self._clock()):
            case "make":
                made = self._client.create(LEASE, self._manifest())
                self._wrote(made, began_s)
            case "take" | "renew" if found is not None:
                self._wrote(self._client.replace(LEASE, self._renewed(found)), began_s)

    def _wrote(self, done: Object, began_s: float) -> None:
        # A lead that has lapsed since the last look is one that begins anew: who rested meanwhile
        # has to be woken.
        self._led = self._led and self.leads()
        self._sight = lease_written(self._sight, _lease(done), self._me, began_s)

    def _give_back(self) -> None:
        sight, self._sight = self._sight, LeaseView()
        if sight.lease is None or sight.renewed_s is None:
            return
        try:
            found = self._client.get(LEASE, self._name)
            if found["spec"].get("holderIdentity") == self._me:
                found["spec"].update(holderIdentity="", leaseDurationSeconds=1)
                self._client.replace(LEASE, found)
        except (ObjectChanged, ObjectMissing):
            return  # it is another one's already

    def _note(self) -> None:
        leading = self.leads()
        if leading != self._led:
            self._led = leading
            log.info("this operator (%s) %s", self._me, "leads" if leading else "leads no more")
            self._on_change()

    def _manifest(self) -> Object:
        now = rfc3339(self._now())
        return {
            "metadata": {"name": self._name, "labels": {PART_OF_LABEL: APP}},
            "spec": {
                "holderIdentity": self._me,
                "leaseDurationSeconds": self._duration_s,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }

    def _renewed(self, found: Object) -> Object:
        spec: dict[str, Any] = found.setdefault("spec", {})
        now = rfc3339(self._now())
        if spec.get("holderIdentity") != self._me:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = (spec.get("leaseTransitions") or 0) + 1
        spec.update(holderIdentity=self._me, leaseDurationSeconds=self._duration_s, renewTime=now)
        return found


def _lease(found: Object) -> Lease:
    spec = found.get("spec", {})
    return Lease(
        found["metadata"]["resourceVersion"],
        spec.get("holderIdentity") or "",
        float(spec.get("leaseDurationSeconds") or 1),
    )
