"""What the pods of one job print, read on from where the last reading ended.

Pods are read again and again instead of being kept open: nodes come and go, and one thread does it.
A reading that fails loses nothing, the next one goes on. What a pod prints in the instant before it
is taken away may be missed; whoever needs all of it has the cluster collect logs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ....errors import ManifestRefused, ObjectMissing
from ...kubernetes.client import Client
from ...kubernetes.resources import (
    JOB_LABEL,
    NODE_CONTAINER,
    NODE_LABEL,
    POD,
    Object,
    is_controlled_by,
    rfc3339_s,
    selector,
)

#: Of each pod, so many of its last lines at first.
TAIL: Final = 400
#: Seconds since 1970, and billionths of one.
Stamp = tuple[int, int]


@dataclass(slots=True)
class _Place:
    """How far one pod has been read.

    Attributes:
        stamp: of the last line; None: nothing has been read.
        lines: that had this stamp.
        over: it had ended when it was read: there is no more.
    """

    stamp: Stamp | None = None
    lines: int = 0
    over: bool = False


class PodLogs:
    """See the module. Used by one thread.

    Args:
        client: of the cluster.
        job: its name.
        uid: of its resource: pods of one before it, of the same name, are not meant.
    """

    def __init__(self, client: Client, job: str, uid: str) -> None:
        self._client, self._uid = client, uid
        self._labels = selector({JOB_LABEL: job})
        self._places: dict[str, _Place] = {}
        self._read: list[list[tuple[Stamp, str]]] = []  # and not handed out, if a later pod failed

    @property
    def pods(self) -> int:
        """How many have been found so far."""
        return len(self._places)

    def new(self) -> list[str]:
        """Lines that have come since the last call, in the order in which they were printed.

        Raises:
            KubernetesUnavailable, AccessError: see `Client`.
        """
        for pod in self._client.list(POD, self._labels):
            if is_controlled_by(pod, self._uid):
                self._read.append(self._of(pod))
        found, self._read = self._read, []
        return [line for _, line in heapq.merge(*found, key=lambda stamped: stamped[0])]

    def _of(self, pod: Object) -> list[tuple[Stamp, str]]:
        meta = pod["metadata"]
        place = self._places.setdefault(meta["uid"], _Place())
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if place.over or phase == "Pending":
            return []
        since = "" if place.stamp is None else rfc3339_s(place.stamp[0])
        tail = None if since else TAIL
        try:
            lines = list(
                self._client.pod_log(
                    meta["name"], since_time=since, tail_lines=tail, container=_container(pod)
                )
            )
        except (ObjectMissing, ManifestRefused):  # it has just gone, or has not begun
            return []
        place.over = phase in ("Succeeded", "Failed")
        number = meta.get("labels", {}).get(NODE_LABEL, "?")
        return [(stamp, f"node {number} | {line}") for stamp, line in _behind(place, lines)]


def _container(pod: Object) -> str:
    names = [one["name"] for one in pod["spec"]["containers"]]
    return NODE_CONTAINER if NODE_CONTAINER in names else str(names[0])


def _behind(place: _Place, lines: Iterable[str]) -> list[tuple[Stamp, str]]:
    """Lines that were not read before; `place` is moved behind them.

    A server is asked for what comes from a whole second on, so it repeats some.
    """
    found = []
    repeated, last = place.lines, place.stamp
    for line in lines:
        stamp, words = _parts(line)
        if stamp is None:  # the server's own words, such as that a file is gone, each time anew
            if last is None:
                found.append((place.stamp or (0, 0), line))
            continue
        if last is not None and stamp < last:
            continue
        if last is not None and stamp == last and repeated:
            repeated -= 1
            continue
        found.append((stamp, words))
        same = stamp == place.stamp
        place.stamp, place.lines = stamp, place.lines + 1 if same else 1
    return found


def _parts(line: str) -> tuple[Stamp | None, str]:
    """When a line was printed, and the line; None: it has no time before it."""
    time, _, words = line.partition(" ")
    whole, dot, rest = time.partition(".")
    digits = rest.rstrip("Zz").partition("+")[0].partition("-")[0]
    zone = rest[len(digits) :]
    try:
        seconds = int(datetime.fromisoformat(whole + zone if dot else time).timestamp())
        return (seconds, int(digits.ljust(9, "0")[:9]) if dot else 0), words
    except ValueError:
        return None, line
