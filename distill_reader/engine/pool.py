"""The links to the teachers of a reader: opened, given up and let go as the roster says."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...errors import AccessError, BadAnswer, EdlError
from ...proto.arena import Arena
from ...proto.lent_arena import LentArena
from ..config import ReaderConfig
from .outcomes import Job, Outcome, Peer
from .roster import Assigned
from .teacher_link import TeacherLink, pause_after

log = logging.getLogger(__name__)


class Pool:
    """One link for each assigned teacher, by teacher id. Used by the engine's thread alone.

    Attributes:
        last_trouble: in words, the latest loss of a teacher.
    """

    def __init__(
        self,
        config: ReaderConfig,
        batches: LentArena,
        labels: Arena,
        post: Callable[[TeacherLink, Outcome], None],
    ) -> None:
        self.last_trouble = ""
        self._config = config
        self._batches = batches if config.shared_memory else None
        self._labels = labels
        self._post = post
        self._links: dict[str, TeacherLink] = {}
        self._leaving: dict[str, TeacherLink] = {}
        self._wanted: dict[str, Peer] = {}
        self._ejected: set[Peer] = set()
        self._silent: set[str] = set()
        self._failures: dict[str, int] = {}  # since its latest labels

    def __len__(self) -> int:
        return len(self._links)

    @property
    def unreachable(self) -> int:
        """Teachers that the roster names and that have not answered the latest request or probe."""
        unusable = self._silent | {peer.teacher_id for peer in self._ejected}
        return len(unusable & self._wanted.keys())

    def answers(self, name: str) -> None:
        """A teacher can be reached."""
        self._silent.discard(name)

    def is_silent(self, name: str, error: EdlError) -> None:
        """A teacher could not be reached, or does not let the reader in."""
        self._silent.add(name)
        self.last_trouble = _trouble(name, error)

    def send(self, teacher: str, job: Job) -> None:
        self.link(teacher).send(job)

    def link(self, teacher: str) -> TeacherLink:
        """The link to a teacher that is assigned, or leaves."""
        return self._links.get(teacher) or self._leaving[teacher]

    def is_assigned(self, link: TeacherLink) -> bool:
        """Whether the teacher may get new batches over `link`."""
        return self._links.get(link.peer.teacher_id) is link

    def has_labelled(self, name: str) -> None:
        """A teacher has done what it is for."""
        self._failures.pop(name, None)

    def retry(self, link: TeacherLink, error: EdlError) -> None:
        """A request failed, the connection holds: probe the teacher before it gets more."""
        name = link.peer.teacher_id
        if isinstance(error, AccessError):
            self.is_silent(name, error)
        else:
            self.last_trouble = f"teacher {name} failed: {error}"
        link.connect(pause_after(error, self._count_failure(name)))

    def states(self) -> dict[str, int]:
        """How many teachers there are of each kind, for those who watch."""
        unreachable = self.unreachable
        return {
            "serving": max(len(self._wanted) - unreachable, 0),
            "unreachable": unreachable,
            "leaving": len(self._leaving),
        }

    def holds(self, link: TeacherLink) -> bool:
        """Whether what `link` posts still counts."""
        name = link.peer.teacher_id
        return link in (self._links.get(name), self._leaving.get(name))

    def update(self, assigned: Assigned) -> tuple[list[str], list[str]]:
        """Follow the roster: names that are (lost, revoked) by it."""
        self._wanted = {peer.teacher_id: peer for peer in assigned.peers}
        self._silent &= self._wanted.keys()
        self._failures = {name: n for name, n in self._failures.items() if name in self._wanted}
        self._ejected &= set(assigned.peers)
        lost, revoked = [], []
        for name, link in (*self._links.items(), *self._leaving.items()):
            peer = self._wanted.get(name)
            if peer == link.peer:
                continue
            if peer is not None or name in assigned.lost:
                lost.append(name)
                self.drop(name, "its lease ran out" if peer is None else "it was started anew")
            elif name in self._links:
                revoked.append(name)
                self.leave(name)
        for name, peer in self._wanted.items():
            if name in self._leaving:  # it is the same one: its requests go on
                self._links[name] = self._leaving.pop(name)
                self._links[name].connect()
            elif name not in self._links and peer not in self._ejected:
                self._open(peer)
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
                log.warning("%s", self.last_trouble)

    def reopen(self, link: TeacherLink, error: EdlError) -> None:
        """The connection broke: try it anew, unless what came over it was wrong."""
        peer = link.peer
        self._silent.add(peer.teacher_id)
        self.drop(peer.teacher_id, str(error))
        if isinstance(error, BadAnswer):
            log.error("teacher %s is not asked again: %s", peer.teacher_id, error)
            self._ejected.add(peer)
        elif peer == self._wanted.get(peer.teacher_id):
            self._open(peer, pause_after(error, self._count_failure(peer.teacher_id)))

    def let_go(self, name: str) -> None:
        """A teacher that leaves has nothing in flight any more; it may be back one day."""
        if (link := self._leaving.pop(name, None)) is not None:
            link.close()
            if link.peer == self._wanted.get(name):
                self._open(link.peer)

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
            self._labels,
            config.window,
            config.request_timeout_s,
            self._post,
            config.security,
            self._batches,
        )
        self._links[peer.teacher_id] = link
        link.connect(pause_s)


def _trouble(name: str, error: EdlError) -> str:
    if isinstance(error, AccessError):
        return f"teacher {name} does not let this reader in: {error}"
    return f"teacher {name} does not answer: {error}"
