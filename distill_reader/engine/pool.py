"""The links to the teachers of a reader: opened, given up and let go as the roster says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ...errors import AccessError, EdlError
from ...proto.clients import Found
from ...proto.lent_arena import LentArena
from ..config import ReaderConfig
from .inbox import Inbox
from .outcomes import Job, Outcome, Peer
from .roster import Assigned
from .teacher_link import TeacherLink, pause_after

log = logging.getLogger(__name__)

#: Requests that are late are looked for so often.
LOOK_EVERY_S: Final = 0.05


class Pool:
    """One link for each assigned teacher, by teacher id. Used by the engine's thread alone.

    Attributes:
        last_trouble: in words, the latest loss of a teacher.
        wanted: those that the roster names and that may be asked.
        out_of_reach: of these, to which no connection can be made.
    """

    def __init__(
        self,
        config: ReaderConfig,
        batches: LentArena,
        post: Callable[[TeacherLink, Outcome], None],
        inbox: Inbox,
    ) -> None:
        self.last_trouble = ""
        self.wanted: dict[str, Peer] = {}
        self.out_of_reach: frozenset[str] = frozenset()
        self._config = config
        self._batches = batches if config.shared_memory else None
        self._post = post
        self._inbox = inbox
        self._links: dict[str, TeacherLink] = {}
        self._leaving: dict[str, TeacherLink] = {}
        self._barred: frozenset[str] = frozenset()  # not to be asked
        self._silent: set[str] = set()
        self._refusing: set[str] = set()  # of these: they do not let the reader in
        self._useless: set[str] = set()  # wrong or refusing, and without labels since then
        self._unheard: set[str] = set()  # they have not answered the first probe, nor failed to
        self._failures: dict[str, int] = {}  # since its latest labels
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._links)

    @property
    def unreachable(self) -> int:
        """Teachers that the roster names and that give no labels.

        They have not answered the latest request or probe, cannot be connected to, answer with
        something else than labels, or must not be asked.
        """
        without = self._silent | self._useless | self.out_of_reach
        return (len(without & self.wanted.keys()) if without else 0) + len(self._barred)

    @property
    def all_useless(self) -> bool:
        """Whether each teacher that the roster names has answered with something but labels."""
        return bool(self.wanted) and self.wanted.keys() <= self._useless

    @property
    def is_shut_out(self) -> bool:
        """Whether no teacher that the roster names lets the reader in, as far as they have said."""
        return bool(self._refusing) and self.wanted.keys() <= self._refusing | self._unheard

    @property
    def found(self) -> list[Found]:
        """The models of our teachers that have answered a probe and say what they take."""
        models = [link.found for link in self._links.values() if not link.peer.foreign]
        return [found for found in models if found.inputs]

    @property
    def output_kinds(self) -> dict[str, str]:
        """What the teachers say that their outputs are, by name, as far as they do."""
        specs = (spec for link in self._links.values() for spec in link.found.outputs)
        return {spec.name: spec.kind for spec in specs if spec.kind}

    @property
    def awaited(self) -> int:
        """Teachers that were asked for the first time whether they serve, and have said nothing."""
        return len(self._unheard)

    def hear(self, link: TeacherLink) -> None:
        """Something came from a teacher, or came to nothing there."""
        self._unheard.discard(link.peer.teacher_id)

    def answers(self, name: str) -> None:
        """A teacher can be reached."""
        self._silent.discard(name)
        self._refusing.discard(name)

    def is_silent(self, name: str, error: EdlError) -> None:
        """A teacher could not be reached, or does not let the reader in."""
        self._silent.add(name)
        if isinstance(error, AccessError):
            self._refusing.add(name)
        else:
            self._refusing.discard(name)
        self.last_trouble = _trouble(name, error)

    def mark_useless(self, name: str) -> None:
        """A teacher answers, and not with labels: others are needed until it sends some."""
        self._useless.add(name)

    def send(self, teacher: str, job: Job) -> None:
        self.link(teacher).send(job)

    def link(self, teacher: str) -> TeacherLink:
        """The link to a teacher that is assigned, or leaves."""
        return self._links.get(teacher) or self._leaving[teacher]

    def look(self, now: float) -> None:
        """Time goes by."""
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        for links in (self._links, self._leaving):
            for link in links.values():
                link.look(now)

    def is_assigned(self, link: TeacherLink) -> bool:
        """Whether the teacher may get new batches over `link`."""
        return self._links.get(link.peer.teacher_id) is link

    def has_labelled(self, name: str) -> None:
        """A teacher has done what it is for."""
        self._failures.pop(name, None)
        self._useless.discard(name)

    def retry(self, link: TeacherLink, error: EdlError, least_s: float = 0.0) -> None:
        """A request failed, the connection holds: probe the teacher before it gets more.

        Requests that were in flight together and fail together count as one failure.

        Args:
            link: to the teacher.
            error: what became of the request.
            least_s: no sooner than this.
        """
        name = link.peer.teacher_id
        if isinstance(error, AccessError):
            self.is_silent(name, error)
        else:
            self.last_trouble = f"teacher {name} failed: {error}"
        if not link.is_probed:
            link.connect(max(pause_after(error, self._count_failure(name)), least_s))

    def states(self) -> dict[str, int]:
        """How many teachers there are of each kind, for those who watch."""
        unreachable = self.unreachable
        return {
            "serving": max(len(self.wanted) + len(self._barred) - unreachable, 0),
            "unreachable": unreachable,
            "leaving": len(self._leaving),
        }

    def holds(self, link: TeacherLink) -> bool:
        """Whether what `link` posts still counts."""
        name = link.peer.teacher_id
        return link in (self._links.get(name), self._leaving.get(name))

    def update(self, assigned: Assigned) -> tuple[list[str], list[str]]:
        """Follow the roster: names that are (lost, revoked) by it."""
        peers = {peer.teacher_id: peer for peer in assigned.peers}
        self.wanted = {name: peer for name, peer in peers.items() if name not in assigned.barred}
        new, self._barred = assigned.barred - self._barred, assigned.barred
        self._silent &= self.wanted.keys()
        self._refusing &= self.wanted.keys()
        self._useless &= self.wanted.keys()
        self._failures = {name: n for name, n in self._failures.items() if name in self.wanted}
        lost, revoked = [], []
        for name, link in (*self._links.items(), *self._leaving.items()):
            peer = self.wanted.get(name)
            if peer == link.peer:
                continue
            if peer is not None or name in assigned.lost:
                lost.append(name)
                self.drop(name, "its lease ran out" if peer is None else "it was started anew")
            elif name in self._links:
                revoked.append(name)
                self.leave(name)
        for name, peer in self.wanted.items():
            if name in self._leaving:  # it is the same one: its requests go on
                self._links[name] = self._leaving.pop(name)
                self._links[name].connect()
            elif name not in self._links:
                self._unheard.add(name)
                self._open(peer)
        self._unheard &= self._links.keys()
        if new:
            names = ", ".join(sorted(new))
            self.last_trouble = f"{names}: of other numerics than this deterministic stream"
            log.warning("%s", self.last_trouble)
        return lost, revoked

    def leave(self, name: str) -> None:
        """The teacher is to get nothing more; its link stays while it has requests in flight."""
        if name in self._links:
            self._leaving[name] = self._links.pop(name)

    def drop(self, name: str, why: str) -> None:
        """Close the connection to a teacher that is gone."""
        for links in (self._links, self._leaving):
            if (link := links.pop(name, None)) is not None:
                link.close()
                self.last_trouble = f"teacher {name} was lost: {why}"
                log.warning("%s", self.last_trouble, extra={"teacher": name})

    def probe(self, name: str, pause_s: float, why: str) -> None:
        """A teacher is out of the pool: it is in again once it answers, after this pause."""
        self._silent.add(name)
        self.last_trouble = f"teacher {name} {why}"
        self.link(name).connect(pause_s)

    def probe_now(self, name: str) -> None:
        """Wait no longer before a teacher is probed, if there is such a wait."""
        if (link := self._links.get(name)) is not None:
            link.pause_no_more()

    def reopen(self, link: TeacherLink, error: EdlError, least_s: float = 0.0) -> None:
        """The connection broke, or what came over it was wrong: try it anew, after this pause."""
        peer = link.peer
        self._silent.add(peer.teacher_id)
        self.drop(peer.teacher_id, str(error))
        if peer == self.wanted.get(peer.teacher_id):
            pause_s = pause_after(error, self._count_failure(peer.teacher_id))
            self._open(peer, max(pause_s, least_s))

    def connect_anew(self, name: str) -> None:
        """A teacher can be reached again: what is on its way over the old connections is lost."""
        self.drop(name, "it could not be reached")
        self._failures.pop(name, None)
        if (peer := self.wanted.get(name)) is not None:
            self._open(peer)

    def let_go(self, name: str) -> bool:
        """A teacher has nothing in flight: whether it leaves, and is gone now.

        It may be back one day.
        """
        if (link := self._leaving.pop(name, None)) is None:
            return False
        link.close()
        if link.peer == self.wanted.get(name):
            self._open(link.peer)
        return True

    def close(self) -> None:
        for link in (*self._links.values(), *self._leaving.values()):
            link.close()

    def _count_failure(self, name: str) -> int:
        """How often it had failed before this time: the first retry is made at once."""
        before = self._failures.get(name, 0)
        self._failures[name] = before + 1
        return before

    def _open(self, peer: Peer, pause_s: float = 0.0) -> None:
        config = self._config
        link = TeacherLink(
            peer,
            config.request_s,
            self._post,
            config.security,
            self._batches,
            keeps=config.store is not None,
            exact=config.deterministic,
            inbox=self._inbox,
        )
        self._links[peer.teacher_id] = link
        link.connect(pause_s)


def _trouble(name: str, error: EdlError) -> str:
    if isinstance(error, AccessError):
        return f"teacher {name} does not let this reader in: {error}"
    return f"teacher {name} does not answer: {error}"
