"""An engine whose thread does not run; tests play the trainer, the rosters and the teachers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.engine import Engine
from edl.distill_reader.engine.ensemble_member import EnsembleMember
from edl.distill_reader.engine.label_cache_thread import BatchKeys, CachedLabels
from edl.distill_reader.engine.metrics import FAMILIES, MemberSnapshot, TeacherTimes
from edl.distill_reader.engine.reporting import student_report
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.distill_reader.engine.teacher_requests import (
    Outcome,
    RequestDone,
    RequestOrProbeFailure,
    TeacherReady,
    TeacherRequest,
)
from edl.distill_reader.store.rows import ModelId
from edl.proto.arena import Arena, Array, Record
from edl.proto.channel import Channel
from edl.proto.shared_buffer import SharedBuffer
from edl.runtime.errors import EdlError
from edl.scheduler.ledger.events import Event as LedgerEvent
from edl.scheduler.reader_core.events import Advice, Assigned, Peer

NOBODY = "127.0.0.1:9"
ROWS = 4
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


def peer(name: str, content_id: str = "", numerics_id: str = "") -> Peer:
    return Peer(name, NOBODY, "s", 1, content_id, numerics_id=numerics_id)


def labels(number: int, width: int = 2) -> Array:
    """Those of batch `number`; each element differs."""
    return (np.arange(ROWS * width).reshape(ROWS, width) + 100 * number).astype(np.float32)


def tell_ledger(member: EnsembleMember, event: LedgerEvent) -> None:
    """The ledger of a member hears of something that would take many steps to bring about."""
    core = member.core
    core._out = []  # noqa: SLF001  # as `handle` does it
    core._apply(event)  # noqa: SLF001
    member._execute(core._out)  # noqa: SLF001


class Bench:
    """See the module. A member is named by its service; None: the first one."""

    def __init__(self, config: ReaderConfig | None = None, **options: Any) -> None:
        self._channel, fd = Channel.pair()
        self._trainer = Channel.attach(fd)
        self._ring, self.arena = SharedBuffer.create(), Arena.create()
        config = config or ReaderConfig("s", teachers=(NOBODY,), **options)
        self.engine = Engine(config, self._channel, self._ring, self.arena)
        self._offsets: list[int] = []

    def close(self) -> None:
        for member in self.engine.members:
            member.close()
        for closable in (self._channel, self._trainer, self._ring, self.arena):
            closable.close()

    @property
    def member(self) -> EnsembleMember:
        return self.engine.members[0]

    def of(self, service: str | None) -> EnsembleMember:
        members = self.engine.members
        return next(one for one in members if service in (None, one.config.service))

    # --- the trainer

    def say(self, kind: str, **fields: Any) -> None:
        if kind == "taken":
            self.release()
        self.engine.handle({"kind": kind, "source_s": 0.0, **fields})

    def release(self) -> None:
        """The training loop may take what follows."""
        batch_delivery = self.engine.batch_delivery
        batch_delivery.execute(batch_delivery.delivery.release())

    def look(self, now: float) -> None:
        """Time goes by."""
        self.engine.decide(now)

    def batch(self, number: int, kind: str = "batch", **fields: Any) -> None:
        (ref,) = self._ring.put([X]).arrays
        described = {"nbytes": X.nbytes, "samples": ROWS, "fields": [[0, ref]]}
        described["generation"] = self._ring.generation(ref.offset)
        self.say(kind, number=number, **described, **fields)

    def reset(self, epoch: int, pulled: int, data_epoch: int | None = None) -> None:
        self.say("reset", epoch=epoch, data_epoch=data_epoch or epoch, pulled=pulled)

    def take(self, number: int) -> None:
        """The training loop takes a batch, and frees the labels that it was sent last."""
        self.say("taken", number=number, samples=ROWS, step_s=0.0, free=self._offsets)

    def free(self) -> None:
        """The trainer gives the labels back that it was sent last."""
        self.say("waiting", free=self._offsets)

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Messages of this kind to the trainer since the last call; others are dropped."""
        return [message for message in self._trainer.received() or () if message["kind"] == kind]

    def labelled(self) -> dict[int, Array | None]:
        """The batches that were delivered since, and their labels."""
        told = self.told("labelled")
        records = {
            message["number"]: message["record"] and Record.from_json(message["record"])
            for message in told
        }
        self._offsets = [record and record.offset for record in records.values()]
        return {
            number: record and self.arena.get(record.arrays[0])
            for number, record in records.items()
        }

    # --- rosters and teachers

    def assign(
        self,
        *peers: Peer | str,
        lost: Iterable[str] = (),
        advice: Advice = Advice(),  # noqa: B008
        counter: int = 1,
        service: str | None = None,
        ready: bool = True,
    ) -> None:
        """A roster says who may be asked; those answer a probe, if they are `ready`."""
        told = tuple(Peer(one, NOBODY, "s") if isinstance(one, str) else one for one in peers)
        assigned = Assigned(told, frozenset(lost), len(told), (7, counter), advice)
        self.of(service).handle(assigned)
        for one in told if ready else ():
            self.outcome(one.teacher_id, TeacherReady(("x",)), service)

    def link(self, teacher: str, service: str | None = None) -> TeacherLink:
        """The connection to a teacher."""
        member = self.of(service)
        return member.links[member.core.teachers.links.number(teacher)]

    def tell_ledger(self, event: LedgerEvent, service: str | None = None) -> None:
        tell_ledger(self.of(service), event)

    def outcome(
        self, teacher: str | TeacherLink, outcome: Outcome, service: str | None = None
    ) -> None:
        member = self.of(service)
        link = self.link(teacher, service) if isinstance(teacher, str) else teacher
        member.on_outcome(link, outcome)

    def requests(self, name: str, service: str | None = None) -> list[TeacherRequest]:
        """What a teacher was sent and has not answered, the longest first."""
        requests = self.of(service).ledger.requests_at(name)
        return [TeacherRequest(one.request, one.spans, {}, one.rows) for one in requests]

    def batches_at(self, name: str) -> list[int]:
        return [span.batch for request in self.requests(name) for span in request.spans]

    def request(self, name: str, number: int | None, service: str | None = None) -> TeacherRequest:
        """The request for a batch; None: the first one."""
        requests = self.requests(name, service)
        return next(r for r in requests if number is None or number in [s.batch for s in r.spans])

    def answer(
        self,
        name: str,
        number: int | None = None,
        *,
        width: int = 2,
        numerics_id: str = "",
        service: str | None = None,
    ) -> None:
        request = self.request(name, number, service)
        rows = np.concatenate([labels(s.batch, width)[s.start : s.stop] for s in request.spans])
        done = RequestDone(request, {"soft": rows}, 0.001, False, 0.01, numerics_id=numerics_id)
        self.outcome(name, done, service)

    def answer_all(self, name: str, *, width: int = 2, service: str | None = None) -> None:
        """What a teacher has, and gets because it answers."""
        while self.requests(name, service):
            self.answer(name, width=width, service=service)

    def fail(
        self, name: str, error: EdlError, number: int | None = None, service: str | None = None
    ) -> None:
        self.outcome(
            name, RequestOrProbeFailure(self.request(name, number, service), error), service
        )

    # --- what it reports

    def metric(self, name: str, *labels: str) -> float:
        """The value of a metric of the first member."""
        forgone = self.engine.batch_delivery.delivery.unlabelled_by_service.total()
        report = student_report(self.member, 0.0)
        seen = MemberSnapshot(self.member, report, TeacherTimes(), forgone, None, 0.0)
        (family,) = (one for one in FAMILIES if one.name == name)
        return dict(family.samples(seen))[labels]

    # --- the store

    def store_has(
        self, number: int, content_id: str, rows: int = ROWS, service: str | None = None
    ) -> None:
        """The store was asked for a batch of this content, and has its first rows."""
        found = CachedLabels(tuple(range(rows)), {"soft": labels(number)[:rows]})
        keys = [bytes([number, row]) for row in range(ROWS)]
        label_cache = self.of(service).label_cache
        assert label_cache is not None
        label_cache.on_lookup(BatchKeys(number, ModelId(content_id), keys), found)
