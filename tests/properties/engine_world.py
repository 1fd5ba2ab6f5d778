"""An engine with its trainer and its teachers, as one test drives them: nothing happens by itself.

The test does the work of the engine's thread. The links of teachers start no threads: the test
posts what their probes and requests come to.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine import engine, reporting, requests, teacher_link
from edl.distill_reader.engine import ensemble_member as members
from edl.distill_reader.engine.engine import Engine
from edl.distill_reader.engine.inbox import Inbox
from edl.distill_reader.engine.roster import NamedTeachers, OnAssigned, OnFailed, Roster
from edl.distill_reader.engine.teacher_link import TeacherLink
from edl.distill_reader.engine.teacher_requests import (
    Outcome,
    RequestDone,
    RequestOrProbeFailure,
    TeacherReady,
    TeacherRequest,
)
from edl.distill_reader.options import EnsembleConfig, EnsemblePolicy, Limits
from edl.proto.arena import Arena, Array, Record
from edl.proto.channel import Channel
from edl.proto.shared_buffer import SharedBuffer
from edl.runtime.errors import (
    BadAnswer,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
)
from edl.scheduler.ledger import events as ev
from edl.scheduler.reader_core.events import Assigned, Peer

NAMES = ("a", "b", "c")
ERRORS: tuple[EdlError, ...] = (
    RetryableError("not now"),
    RateLimited("full"),
    TeacherLost("gone"),
    BadAnswer("not finite"),
    RequestRefused("bad shape"),
)


def x_of(number: int, rows: int) -> Array:
    return (np.arange(rows * 2).reshape(rows, 2) + 100 * number).astype(np.float32)


def labels_of(x: Array, model: int = 0) -> Array:
    """Probabilities, so that the mean of two services that agree is what both say.

    Every other model has a class more.
    """
    first = 1 / (2 + x[:, :1] % 97 + model)
    more = [np.full_like(first, 1e-9)] * (model % 2)
    return np.concatenate([first, 1 - first, *more], axis=1)


def link_of(member: Any, name: str) -> TeacherLink:
    link: TeacherLink = member.links[member.core.teachers.links.number(name)]
    return link


class EngineWorld(RuleBasedStateMachine):
    engine: Engine
    now: float

    @initialize(
        ordered=st.booleans(),
        rows=st.sampled_from([None, 3, 5]),
        services=st.sampled_from([("s",), ("s", "t")]),
        policy=st.sampled_from(["wait", "hard_only"]),
        missing=st.sampled_from(["wait", "tolerate"]),
        prompt=st.booleans(),
    )
    def it_starts(
        self,
        ordered: bool,
        rows: int | None,
        services: tuple[str, ...],
        policy: Any,
        missing: Any,
        prompt: bool,
    ) -> None:
        self.patches = contextlib.ExitStack()
        self.patches.enter_context(mock.patch.object(TeacherLink, "_thread"))
        # What Hypothesis draws must not depend on how long the test takes, nor on other threads of
        # this process, which use the global generator of random numbers.
        self.patches.enter_context(mock.patch.object(members, "random", random.Random(0)))
        clock = mock.Mock(wraps=time, monotonic=lambda: self.now)
        for module in (engine, members, reporting, requests, teacher_link):
            self.patches.enter_context(mock.patch.object(module, "time", clock))
        self.on_assigned: dict[str, OnAssigned] = {}
        mixing = None
        if len(services) > 1:
            addresses = tuple((name, ("h:1",)) for name in services)
            weights = tuple((name, 1.0) for name in services)
            mixing = EnsembleConfig(weights, addresses, EnsemblePolicy(missing))
        self.config = ReaderConfig(
            "+".join(services),
            teachers=("h:1",),
            ordered=ordered,
            limits=Limits(request_rows=rows),
            no_teacher=policy,
            ensemble=mixing,
        )
        self.ring = SharedBuffer.create(1 << 16)
        self.ordered, self.policy = ordered, policy
        self.next_number = self.pulled = self.epoch = 0
        self.now = 1000.0
        self.records: dict[int, tuple[int, Record]] = {}  # rows of batches, and where they lie
        self.untaken: list[int] = []
        self.calls: list[int] = []  # numbers of the batches of calls that wait
        self.outcomes: dict[int, Any] = {}
        self.released: dict[int, int] = {}  # when each was, that may be taken
        self.to_free: list[int] = []
        self.model = 0  # that teachers have, of all there were
        self.latest_taken: int | None = 0  # the model of the latest batch; None: any may come
        self.happened = 0  # events
        self.prompt = prompt
        self.unheard: list[dict[str, Any]] = []  # that the engine has said
        self.disbelieved: dict[str, int] = {}  # when each teacher was, the last time
        self.start()

    def start(self) -> None:
        self.channel, fd = Channel.pair()
        self.trainer = Channel.attach(fd)
        self.arena = Arena.create(1 << 16)
        self.inbox = Inbox()
        with (
            mock.patch.object(engine, "Inbox", return_value=self.inbox),
            mock.patch.object(members, "open_roster", self.open_roster),
        ):
            self.engine = Engine(self.config, self.channel, self.ring, self.arena)
        for member in self.engine.members:
            self.assign(member, set(NAMES), set())

    def open_roster(
        self, config: ReaderConfig, on_assigned: OnAssigned, on_failed: OnFailed
    ) -> Roster:
        self.on_assigned[config.service] = on_assigned
        return NamedTeachers(config, on_assigned)

    def stop(self) -> None:
        for member in self.engine.members:
            member.close()
        self.inbox.close()
        for closable in (self.channel, self.trainer, self.arena):
            closable.close()

    def say(self, kind: str, **fields: Any) -> None:
        self.engine.handle({"kind": kind, "free": self.to_free, **fields})
        self.to_free = []
        self.hear()

    def decide(self) -> None:
        self.engine.decide(self.now)
        self.hear()

    def hear(self) -> None:
        """Let the engine take in what was posted, and take in what it says."""
        while events := self.inbox.next(0.0):
            for event in events:
                event()
        for message in self.trainer.received() or ():
            self.happened += 1
            self.unheard.append({**message, "arena": self.arena, "at": self.happened})
        if self.prompt:
            self.the_trainer_hears()

    @rule()
    def the_trainer_hears(self) -> None:
        unheard, self.unheard = self.unheard, []
        for message in unheard:
            number = message.get("number")
            match message["kind"]:
                case "labelled" | "poison" if number in self.calls:
                    self.a_call_is_answered(message)
                case "labelled" | "poison":
                    if number in self.untaken:
                        assert number not in self.outcomes, "it was not withdrawn"
                        self.outcomes[number] = message
                    else:
                        self.give_back(message)
                case "withdraw":
                    if number in self.untaken:
                        assert number not in self.released
                        self.give_back(self.outcomes.pop(number))
                case "release":
                    news = [n for n in message["numbers"] if n in self.untaken]
                    assert all(n in self.outcomes and n not in self.released for n in news)
                    self.released |= dict.fromkeys(news, message["at"])
                case "fatal" | "call_failed":
                    raise AssertionError(message["text"])
                case _:
                    pass

    def give_back(self, outcome: dict[str, Any]) -> None:
        """Labels are of no use any more; those of an engine that died have gone with it."""
        if outcome.get("record") is not None and outcome["arena"] is self.arena:
            self.to_free.append(outcome["record"][0])

    def a_call_is_answered(self, message: dict[str, Any]) -> None:
        number = message["number"]
        self.calls.remove(number)
        rows, record = self.records.pop(number)
        self.ring.free(record.offset)
        if message["kind"] == "labelled":
            (ref,) = Record.from_json(message["record"]).arrays
            assert self.models_of(message["arena"].get(ref), x_of(number, rows))
            self.give_back(message)

    def repeat_calls(self) -> None:
        """Each call that waits gets a new number, for an engine that does not know the old one."""
        for number in list(self.calls):
            self.calls.remove(number)
            self.call(self.records.pop(number))

    def call(self, batch: tuple[int, Record]) -> None:
        number, self.next_number = self.next_number, self.next_number + 1
        self.records[number] = batch
        self.calls.append(number)
        self.say("call", **self.described(number))

    def announce(self, number: int) -> None:
        self.say("batch", **self.described(number))

    def described(self, number: int) -> dict[str, Any]:
        rows, record = self.records[number]
        return {
            "number": number,
            "nbytes": record.nbytes,
            "samples": rows,
            "fields": [[0, record.arrays[0]]],
            "generation": self.ring.generation(record.arrays[0].offset),
            "source_s": 0.0,
        }

    @property
    def takeable(self) -> list[int]:
        found = [*self.released][:1]
        assert not self.ordered or found in ([], self.untaken[:1]), "out of order"
        return [n for n in found if self.outcomes[n]["kind"] == "labelled"]

    def are_of_one_model(self, soft: Array, x: Array) -> None:
        """The labels are those of a whole batch, and in order no older model comes back."""
        fitting = self.models_of(soft, x)
        assert fitting, f"no model labels {x} as {soft}"
        if self.ordered and len(self.engine.members) == 1 and self.latest_taken is not None:
            assert fitting[0] >= self.latest_taken, "back to a model that was exchanged"
            self.latest_taken = fitting[0]

    def models_of(self, soft: Array, x: Array) -> list[int]:
        """Those that label `x` so."""
        wanted = [labels_of(x, model) for model in range(self.model + 1)]
        return [
            model
            for model, labels in enumerate(wanted)
            if labels.shape == soft.shape and np.allclose(soft, labels, rtol=1e-6)
        ]

    def assign(self, member: Any, names: set[str], lost: set[str]) -> None:
        service = member.config.service
        peers = [Peer(f"{service}.{n}", "127.0.0.1:9", service, 1) for n in sorted(names)]
        dead = frozenset(f"{service}.{n}" for n in lost - names)
        self.on_assigned[service](Assigned(tuple(peers), dead))
        self.hear()
        for peer in peers:
            self.is_ready(member, peer.teacher_id)

    def is_ready(self, member: Any, name: str) -> None:
        self.post(link_of(member, name), TeacherReady(("x",)))

    def post(self, link: TeacherLink, outcome: Outcome) -> None:
        link.post(link, outcome)
        self.hear()

    @property
    def busy(self) -> list[tuple[Any, str]]:
        return [(m, name) for m in self.engine.members for name in m.ledger.at_work]

    def end(
        self,
        member: Any,
        name: str,
        request: int,
        spans: tuple[ev.Span, ...],
        error: EdlError | None,
    ) -> None:
        told = member.ledger.request(request)
        model = self.model if told is not None and told.teachers else max(self.model - 1, 0)
        rows = [labels_of(x_of(s.batch, s.stop)[s.start :], model) for s in spans]
        soft = np.concatenate(rows)
        if len(self.engine.members) > 1:  # then logits are asked for
            soft = np.log(soft)
        sent = TeacherRequest(request, spans, {"x": soft}, len(soft))
        done = (
            RequestDone(sent, {"soft": soft}, 0.001, False, 0.01)
            if error is None
            else RequestOrProbeFailure(sent, error)
        )
        self.post(link_of(member, name), done)
        if error is not None:
            with contextlib.suppress(KeyError):  # a teacher that leaves is gone by then
                if member.core.teachers.links.is_assigned(name):
                    self.post(link_of(member, name), TeacherReady(("x",)))
