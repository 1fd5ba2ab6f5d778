"""Laws of a lease: never two that act, and always one again, whoever dies or hangs."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.leadership import (
    RENEWAL_SHARE,
    Lease,
    LeaseView,
    lease_action,
    may_act,
    view_after_read,
    view_after_write,
)

DURATION_S = 15.0


@dataclass
class Server:
    lease: Lease | None = None
    versions: int = 0

    def write(self, holder: str, expected: str | None) -> Lease | None:
        """The lease as it is now; None: somebody else was faster."""
        if (None if self.lease is None else self.lease.version) != expected:
            return None
        self.versions += 1
        self.lease = Lease(str(self.versions), holder, DURATION_S)
        return self.lease


@dataclass
class Candidate:
    """One that looks, and may rest between its calls; its clock is `ahead_s` of the others'."""

    name: str
    ahead_s: float
    sight: LeaseView = field(default_factory=LeaseView)
    expects: str | None = None
    wants: bool = False

    def leads(self, now: float) -> bool:
        return may_act(self.sight, now + self.ahead_s)

    def read(self, server: Server, now: float) -> None:
        own_s = now + self.ahead_s
        self.sight = view_after_read(self.sight, server.lease, self.name, own_s)
        self.expects = None if server.lease is None else server.lease.version
        self.wants = lease_action(self.sight, self.name, own_s) != "wait"

    def write(self, server: Server, began_s: float) -> None:
        """What follows from what it has read last, whatever has become of the lease since."""
        done = server.write(self.name, self.expects) if self.wants else None
        self.wants = False
        if done is not None:
            self.sight = view_after_write(self.sight, done, self.name, began_s + self.ahead_s)

    def look(self, server: Server, now: float) -> None:
        self.read(server, now)
        self.write(server, now)


#: Who does what after which pause; a write is answered so much later.
Step = tuple[int, str, float, float]
CALLS = st.sampled_from(["read", "write"])
steps = st.tuples(st.integers(0, 2), CALLS, st.floats(0, 12), st.floats(0, 5))


@given(
    st.lists(steps, min_size=1, max_size=80),
    st.tuples(*[st.floats(-1e6, 1e6)] * 3),
    st.integers(3, 80),
)
def test_never_two_act(story: list[Step], ahead: tuple[float, ...], deleted_at: int) -> None:
    server, now = Server(Lease("0", "", DURATION_S)), 0.0
    all_of_them = [Candidate(name, own) for name, own in zip("abc", ahead, strict=True)]
    for one in all_of_them:  # each knows the lease, and is about to take it
        one.read(server, now)
    for number, (who, what, pause_s, late_s) in enumerate(story, start=3):
        now += pause_s
        if number == deleted_at:
            server.lease = None
        if what == "read":
            now += late_s
            all_of_them[who].read(server, now)
        else:
            began_s, now = now, now + late_s
            all_of_them[who].write(server, began_s)
        assert sum(one.leads(now) for one in all_of_them) <= 1


@given(st.floats(0, 100), st.floats(-1e6, 1e6))
def test_after_a_death_another_leads_in_time(gap_s: float, ahead_s: float) -> None:
    server = Server()
    first, second = Candidate("a", 0.0), Candidate("b", ahead_s)
    first.look(server, gap_s)  # and is never heard of again
    now, limit_s = gap_s, gap_s + DURATION_S * (1 + 2 * RENEWAL_SHARE)
    while not second.leads(now):
        second.look(server, now)
        assert now <= limit_s
        now += DURATION_S * RENEWAL_SHARE
    assert now >= gap_s + DURATION_S * 0.99  # not before the lease of the first has run out


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    sight = view_after_read(LeaseView(), Lease("1", "", 1.0), "b", 0.0)
    assert lease_action(sight, "b", 0.0) == "take"
    assert lease_action(view_after_read(LeaseView(), None, "b", 0.0), "b", 0.0) == "make"


def test_a_lease_that_is_deleted_is_its_holders_for_as_long_as_it_may_not_know() -> None:
    before = Lease("1", "a", DURATION_S)
    other = view_after_read(view_after_read(LeaseView(), before, "b", 0.0), None, "b", 1.0)
    assert (
        lease_action(other, "b", 1.0)
        == lease_action(view_after_read(other, None, "b", 9.0), "b", 15.9)
        == "wait"
    )
    assert lease_action(other, "b", 16.0) == "make"
    holder = view_after_read(view_after_write(LeaseView(), before, "a", 0.0), None, "a", 1.0)
    assert lease_action(holder, "a", 1.0) == "make"


def test_an_answer_that_was_lost_is_no_lead_until_it_is_renewed() -> None:
    mine = Lease("1", "a", DURATION_S)
    sight = view_after_read(LeaseView(), mine, "a", 0.0)
    assert lease_action(sight, "a", 0.0) == "renew"
    assert not may_act(sight, 0.0)
    assert may_act(view_after_write(sight, Lease("2", "a", DURATION_S), "a", 0.0), 5.0)
