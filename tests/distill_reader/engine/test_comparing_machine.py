"""Whatever teachers do, the books of what is compared agree, and honest ones are not convicted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.distill_reader.canaries import CanaryPolicy
from edl.proto.arena import Array
from edl.scheduler.ledger import events as ev
from edl.tests.distill_reader.engine.test_comparing import CONFIG, TRUE, Desk


class Machine(RuleBasedStateMachine):
    """Teachers come, answer in any order, fail and go; some lie, each in a way of its own."""

    @initialize(share=st.sampled_from([0.0, 0.5, 1.0]))
    def begin(self, share: float) -> None:
        self.desk = Desk(replace(CONFIG, canaries=CanaryPolicy(share=share)))
        self.names = iter(range(10_000))
        self.there: dict[str, Array] = {}
        self.now = 0.0

    @rule(lies=st.booleans())
    def join(self, lies: bool) -> None:
        if len(self.there) < 5:
            self.add(lies)

    def add(self, lies: bool) -> None:
        number = next(self.names)
        name = f"liar-{number}" if lies else f"honest-{number}"
        self.there[name] = TRUE * np.float32(2 * 1.1**number) if lies else TRUE
        self.desk.join(name)

    @rule()
    def queue(self) -> None:
        self.desk.queue()

    @precondition(lambda self: self.desk.sent)
    @rule(data=st.data(), fate=st.sampled_from(["answers"] * 4 + ["fails", "is lost"]))
    def something_comes_of_a_request(self, data: st.DataObject, fate: str) -> None:
        desk = self.desk
        request, name = data.draw(st.sampled_from(desk.sent))
        if fate == "answers":
            desk.answer(request, name, self.there[name])
        elif fate == "fails":
            desk.fail(request, name)
            on_trial = desk.comparing.joined(name, "cpu")
            desk.tell(replace(ev.TeacherJoined(name, 2), on_trial=on_trial))
        else:
            desk.lose(name)
            del self.there[name]

    @rule(data=st.data())
    def time_goes_by(self, data: st.DataObject) -> None:
        self.now += 0.7
        answering = {name for name in self.there if data.draw(st.booleans())}
        self.desk.carry_out(self.desk.comparing.look(answering, self.now))

    @rule()
    def the_epoch_is_left(self) -> None:
        self.desk.comparing.clear()
        self.desk.tell(ev.Reset())

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "desk"):
            return
        desk = self.desk
        desk.ledger.validate()
        assert not self.there or set(desk.on_trial) != set(self.there), "somebody is believed"
        in_flight = {request for request, _ in desk.sent}
        assert set(desk.cases) <= in_flight, "nothing is kept of what is over"
        assert all(name.startswith("liar") for name in desk.liars), "the honest are not convicted"
        assert set(desk.liars) & set(self.there) <= set(desk.on_trial), "a liar gets nothing more"

    def teardown(self) -> None:
        """In the end the honest are trusted, and nobody else."""
        if not hasattr(self, "desk"):
            return
        desk = self.desk
        while sum(name.startswith("honest") for name in self.there) < 2:
            self.add(lies=False)
        desk.answer_all(**self.there)
        for _ in range(20):
            desk.queue()
            desk.answer_all(**self.there)
        assert desk.cases == []
        trusted = set(self.there) - set(desk.on_trial)
        assert trusted == {name for name in self.there if name.startswith("honest")}


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
