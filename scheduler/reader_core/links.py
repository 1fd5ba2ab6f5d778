"""The connections to the teachers of one service, and the times of their probes.

A teacher gets requests once it has answered a probe. A teacher that does not answer is probed again
after growing pauses, and a full teacher at the time at which it expects to have room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf

from .. import reachability
from ..backoff import RandomLike
from ..circuit_breakers import Log
from .events import Assigned, Peer, ProbeFailed, RequestFailed
from .instructions import CloseConnection, Instruction, OpenConnection, Probe


@dataclass(slots=True, eq=False)
class LinkState:
    """The connection to one teacher.

    Attributes:
        number: number of the connection; each new connection gets a new number.
        peer: the teacher.
        leaves: it gets no more requests, but may have requests in flight.
        probe_at: time of the next probe; infinity: none is planned, or a probe is under way.
        is_probing: a probe is under way.
        failed_probes: number of consecutive failed probes.
    """

    number: int
    peer: Peer
    leaves: bool = False
    probe_at: float = inf
    is_probing: bool = False
    failed_probes: int = 0

    @property
    def has_probe(self) -> bool:
        """Whether a probe is planned or under way."""
        return self.is_probing or self.probe_at < inf


class TeacherLinks:
    """One connection for each assigned teacher, by teacher id.

    Args:
        rng: jitters probes.
        emit: takes an instruction for the driver.
        log: writes a log message.

    Attributes:
        last_trouble: text of the latest problem with a teacher; empty: none so far.
        wanted: assigned teachers that may get requests.
        out_of_reach: wanted teachers that cannot be connected to.
        unanswered: wanted teachers whose first probe has neither succeeded nor failed yet.
        next_probe_at: no probe is planned for an earlier time.
    """

    def __init__(self, rng: RandomLike, emit: Callable[[Instruction], None], log: Log) -> None:
        self.last_trouble = ""
        self.wanted: dict[str, Peer] = {}
        self.out_of_reach: frozenset[str] = frozenset()
        self.unanswered: set[str] = set()
        self.next_probe_at = inf
        self._rng = rng
        self._emit = emit
        self._log = log
        self._links: dict[str, LinkState] = {}
        self._opened = 0
        self._barred: frozenset[str] = frozenset()  # assigned, but must not get requests
        self._silent: set[str] = set()  # did not answer, or were ejected; until a probe succeeds
        self._refusing: set[str] = set()  # silent teachers that reject the reader's credentials
        self._useless: set[str] = set()  # have answered without labels, and sent no labels since
        self._failures: dict[str, int] = {}  # since the latest labels

    def __len__(self) -> int:
        """Number of teachers that may get new requests, once they have answered a probe."""
        return sum(not link.leaves for link in self._links.values())

    @property
    def unavailable(self) -> frozenset[str]:
        """Assigned teachers that give no labels.

        They do not answer, reject the reader, cannot be connected to, answer with something other
        than labels, are ejected, or must not get requests.
        """
        failing = self._silent | self._useless | self.out_of_reach
        return self._barred | (failing & self.wanted.keys()) if failing else self._barred

    @property
    def all_useless(self) -> bool:
        """Whether every assigned teacher has answered with something other than labels."""
        return bool(self.wanted) and self.wanted.keys() <= self._useless

    @property
    def is_shut_out(self) -> bool:
        """Whether teachers reject the reader, and no other teacher has finished its first probe."""
        return bool(self._refusing) and self.wanted.keys() <= self._refusing | self.unanswered

    def states(self) -> dict[str, int]:
        """Return the number of teachers in each state, for reports."""
        unreachable = len(self.unavailable)
        return {
            "serving": max(len(self.wanted) + len(self._barred) - unreachable, 0),
            "unreachable": unreachable,
            "leaving": sum(link.leaves for link in self._links.values()),
        }

    def is_assigned(self, name: str) -> bool:
        """Whether a teacher may get new requests."""
        link = self._links.get(name)
        return link is not None and not link.leaves

    def peer(self, name: str) -> Peer:
        """Return the peer of a teacher with a connection."""
        return self._links[name].peer

    def number(self, name: str) -> int:
        """Return the number of a teacher's connection."""
        return self._links[name].number

    # --- messages

    def record_message(self, name: str, number: int) -> bool:
        """Record a message over connection `number`; return whether this is the current one."""
        link = self._links.get(name)
        if link is None or link.number != number:
            return False
        self.unanswered.discard(name)
        return True

    def probe_answered(self, name: str, *, is_ejected: bool = False) -> None:
        """Record an answered probe; an ejected teacher stays unavailable."""
        link = self._links[name]
        link.is_probing, link.failed_probes = False, 0
        if not is_ejected:
            self._silent.discard(name)
        self._refusing.discard(name)

    def probe_failed(self, event: ProbeFailed, now: float) -> None:
        """Record a failed probe, and plan the next one."""
        link = self._links[event.teacher]
        link.is_probing = False
        link.failed_probes += 1
        self._record_silence(event)
        self._plan(link, now + self._pause_s(link.failed_probes, event))

    def _record_silence(self, event: ProbeFailed | RequestFailed) -> None:
        """Record that a teacher cannot be reached or rejects the reader."""
        name = event.teacher
        self._silent.add(name)
        if event.failure == "shut out":
            self._refusing.add(name)
            self.last_trouble = f"teacher {name} rejects this reader's credentials: {event.reason}"
        else:
            self._refusing.discard(name)
            self.last_trouble = f"teacher {name} does not answer: {event.reason}"

    def mark_useless(self, name: str) -> None:
        """Record an answer without labels: the teacher counts as unavailable until it labels."""
        self._useless.add(name)

    def record_labels(self, name: str) -> None:
        """Record labels of a teacher."""
        self._failures.pop(name, None)
        self._useless.discard(name)

    # --- probes

    def plan_probe(self, name: str, now: float, pause_s: float = 0.0) -> None:
        """Probe a teacher until it answers, first after a pause.

        If a probe is planned or under way, only a pause of 0 has an effect: a planned probe becomes
        due, and later pauses begin short again.
        """
        link = self._links[name]
        if not (link.has_probe and pause_s):
            link.failed_probes = 0
            if not link.is_probing:
                self._plan(link, now + pause_s)

    def probe_ejected(self, name: str, pause_s: float, why: str, now: float) -> None:
        """Probe an ejected teacher after a pause; it returns to the pool when it answers."""
        self._silent.add(name)
        self.last_trouble = f"teacher {name} {why}"
        self.plan_probe(name, now, pause_s)

    def probe_now(self, name: str, now: float) -> None:
        """Probe a teacher now if it waits for its first probe since it was connected or ejected."""
        link = self._links.get(name)
        if link is not None and not link.leaves and not link.failed_probes and link.probe_at < inf:
            self._plan(link, min(link.probe_at, now))

    def retry(self, event: RequestFailed, least_s: float, now: float) -> None:
        """Probe a teacher before its next request, after a failure over a working connection.

        Concurrent requests that fail together count as one failure. The pause before the probe is
        at least `least_s` seconds.
        """
        name = event.teacher
        if event.failure == "shut out":
            self._record_silence(event)
        else:
            self.last_trouble = f"teacher {name} failed: {event.reason}"
        if not self._links[name].has_probe:
            self.plan_probe(
                name, now, max(self._pause_s(self._count_failure(name), event), least_s)
            )

    def start_probes(self, now: float) -> None:
        """Send the probes that are due."""
        for name, link in self._links.items():
            if link.probe_at <= now:
                link.probe_at, link.is_probing = inf, True
                self._emit(Probe(link.number, name))
        self.next_probe_at = min((link.probe_at for link in self._links.values()), default=inf)

    # --- membership

    def update(self, assigned: Assigned, now: float) -> tuple[list[str], list[str]]:
        """Follow an assignment; return the names of lost teachers, and of revoked ones.

        A teacher with a new address or other new facts is lost, and gets a new connection.
        """
        peers = {peer.teacher_id: peer for peer in assigned.peers}
        self.wanted = {name: peer for name, peer in peers.items() if name not in assigned.barred}
        new_barred, self._barred = assigned.barred - self._barred, assigned.barred
        for names in (self._silent, self._refusing, self._useless):
            names.intersection_update(self.wanted)
        self._failures = {name: n for name, n in self._failures.items() if name in self.wanted}
        lost, revoked = [], []
        for name, link in list(self._links.items()):
            peer = self.wanted.get(name)
            if peer == link.peer:
                continue
            if peer is not None or name in assigned.lost:
                lost.append(name)
                self.drop(name, "its lease ran out" if peer is None else _change(link.peer, peer))
            elif not link.leaves:
                revoked.append(name)
                link.leaves = True
        for name, peer in self.wanted.items():
            if (known_link := self._links.get(name)) is None:
                self.unanswered.add(name)
                self._open(peer, now)
            elif known_link.leaves:  # the same teacher: its requests go on
                known_link.leaves = False
                self.plan_probe(name, now)
        self.unanswered = {name for name in self.unanswered if self.is_assigned(name)}
        if new_barred:
            self.last_trouble = (
                "teachers are not used because their numerics differ from those of this"
                f" deterministic stream: {', '.join(sorted(new_barred))}"
            )
            self._log("warning", self.last_trouble, "")
        return lost, revoked

    def leave(self, name: str) -> None:
        """Send no more requests to the teacher; its connection stays until they have ended."""
        if (link := self._links.get(name)) is not None:
            link.leaves = True

    def drop(self, name: str, why: str) -> None:
        """Close the connection to a teacher that is gone."""
        if (link := self._links.pop(name, None)) is not None:
            self._emit(CloseConnection(link.number))
            self.last_trouble = f"teacher {name} was lost: {why}"
            self._log("warning", self.last_trouble, name)

    def reconnect(self, event: RequestFailed, least_s: float, now: float) -> None:
        """Connect again after a broken connection or a wrong answer; for the pause see `retry`."""
        name = event.teacher
        peer = self._links[name].peer
        self._silent.add(name)
        self.drop(name, event.reason)
        if peer == self.wanted.get(name):
            pause_s = self._pause_s(self._count_failure(name), event)
            self._open(peer, now, max(pause_s, least_s))

    def reconnect_now(self, name: str, now: float) -> None:
        """Reconnect to a teacher that is reachable again: data on its old connection is lost."""
        self.drop(name, "it could not be reached")
        self._failures.pop(name, None)
        if (peer := self.wanted.get(name)) is not None:
            self._open(peer, now)

    def close_if_leaving(self, name: str, now: float) -> bool:
        """Close the connection of a teacher without requests in flight, if it leaves.

        Open a new connection if the teacher is assigned again. Returns whether it was leaving.
        """
        link = self._links.get(name)
        if link is None or not link.leaves:
            return False
        del self._links[name]
        self._emit(CloseConnection(link.number))
        if link.peer == self.wanted.get(name):
            self._open(link.peer, now)
        return True

    def _count_failure(self, name: str) -> int:
        """Count a failure; return the number of earlier ones, so the first retry is immediate."""
        before = self._failures.get(name, 0)
        self._failures[name] = before + 1
        return before

    def _pause_s(self, failures: int, event: ProbeFailed | RequestFailed) -> float:
        refused, retry_after_s = event.failure == "shut out", event.retry_after_s
        return reachability.pause_s(
            failures, self._rng, refused=refused, retry_after_s=retry_after_s
        )

    def _plan(self, link: LinkState, at: float) -> None:
        link.probe_at = at
        self.next_probe_at = min(self.next_probe_at, at)

    def _open(self, peer: Peer, now: float, pause_s: float = 0.0) -> None:
        self._opened += 1
        link = self._links[peer.teacher_id] = LinkState(self._opened, peer)
        self._emit(OpenConnection(link.number, peer))
        self._plan(link, now + pause_s)


def _change(before: Peer, after: Peer) -> str:
    names = [one.name for one in fields(Peer)]
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    return f"its registered facts changed: {', '.join(changed)}"
