"""Incremental reader of the output of a job's pods.

Pods are polled instead of followed, so that one thread reads all of them while nodes come and go. A
failed read loses nothing. Lines that a pod prints just before it is deleted may be missed; a log
collector of the cluster has all lines.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ....runtime.errors import KubernetesObjectMissing, ManifestRefused
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

#: Most lines in the first read of a pod.
TAIL: Final = 400
#: Seconds since 1970, and nanoseconds within the second.
Stamp = tuple[int, int]


@dataclass(slots=True)
class _ReadPosition:
    """Position up to which a pod has been read.

    Attributes:
        stamp: time of the last line; None: nothing has been read.
        lines: number of lines with this time.
        ended: the pod had ended before the latest read, so there is no more to read.
    """

    stamp: Stamp | None = None
    lines: int = 0
    ended: bool = False


class PodLogs:
    """Reads the output of a job's pods. Used by one thread.

    Args:
        client: client of the cluster.
        job: name of the job.
        uid: uid of its resource; excludes pods of a former job of the same name.
    """

    def __init__(self, client: Client, job: str, uid: str) -> None:
        self._client, self._uid = client, uid
        self._labels = selector({JOB_LABEL: job})
        self._positions: dict[str, _ReadPosition] = {}
        self._unreturned: list[list[tuple[Stamp, str]]] = []  # kept if a later pod's read fails

    @property
    def pods(self) -> int:
        """Number of pods found so far."""
        return len(self._positions)

    def new(self) -> list[str]:
        """Return the lines since the last call, ordered by time.

        Raises:
            KubernetesUnavailable, AccessError: see `Client`.
        """
        for pod in self._client.list(POD, self._labels):
            if is_controlled_by(pod, self._uid):
                self._unreturned.append(self._new_lines(pod))
        found, self._unreturned = self._unreturned, []
        return [line for _, line in heapq.merge(*found, key=lambda stamped: stamped[0])]

    def _new_lines(self, pod: Object) -> list[tuple[Stamp, str]]:
        meta = pod["metadata"]
        position = self._positions.setdefault(meta["uid"], _ReadPosition())
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if position.ended or phase == "Pending":
            return []
        since = "" if position.stamp is None else rfc3339_s(position.stamp[0])
        tail = None if since else TAIL
        try:
            lines = list(
                self._client.pod_log(
                    meta["name"], since_time=since, tail_lines=tail, container=_container(pod)
                )
            )
        except (KubernetesObjectMissing, ManifestRefused):
            return []  # the pod was deleted, or has not started
        position.ended = phase in ("Succeeded", "Failed")
        number = meta.get("labels", {}).get(NODE_LABEL, "?")
        return [(stamp, f"node {number} | {line}") for stamp, line in _unread(position, lines)]


def _container(pod: Object) -> str:
    names = [one["name"] for one in pod["spec"]["containers"]]
    return NODE_CONTAINER if NODE_CONTAINER in names else str(names[0])


def _unread(position: _ReadPosition, lines: Iterable[str]) -> list[tuple[Stamp, str]]:
    """Return lines that were not read before, and move the position behind them.

    The API accepts only whole seconds as a start, so it repeats lines of the latest second.
    """
    found = []
    repeated, last = position.lines, position.stamp
    for line in lines:
        stamp, text = _parts(line)
        if stamp is None:  # a message of the server, which each read repeats
            if last is None:
                found.append((position.stamp or (0, 0), line))
            continue
        if last is not None and stamp < last:
            continue
        if last is not None and stamp == last and repeated:
            repeated -= 1
            continue
        found.append((stamp, text))
        same = stamp == position.stamp
        position.stamp, position.lines = stamp, position.lines + 1 if same else 1
    return found


def _parts(line: str) -> tuple[Stamp | None, str]:
    """Split a line into time and text; time None: the line has none."""
    time, _, text = line.partition(" ")
    whole, dot, rest = time.partition(".")
    digits = rest.rstrip("Zz").partition("+")[0].partition("-")[0]
    zone = rest[len(digits) :]
    try:
        seconds = int(datetime.fromisoformat(whole + zone if dot else time).timestamp())
        return (seconds, int(digits.ljust(9, "0")[:9]) if dot else 0), text
    except ValueError:
        return None, line
