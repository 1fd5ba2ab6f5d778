"""When a machine is given back, and lent again."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from edl.mesh.agent.lending import LendingConfig, LendingMemory, decide_lending

OWNED = LendingConfig(max_load=1.0, quiet_s=10.0, mean_s=0.0)


def looks(loads: list[float], config: LendingConfig = OWNED) -> list[bool]:
    """Whether it was lent at each look, one a second."""
    memory, lent = LendingMemory(), []
    for now, load in enumerate(loads):
        found, memory = decide_lending(load, None, memory, float(now), config)
        lent.append(found.lent)
    return lent


class TestLending:
    def test_load_takes_the_machine_and_quiet_returns_it(self) -> None:
        lent = looks([0.2, 1.5, *[0.1] * 12])
        assert lent == [True, False, *[False] * 10, True, True]
        assert not any(looks([2.0, *[0.6] * 30]))
        assert looks([2.0, *[0.1] * 9, 0.7, *[0.1] * 9]) == [False] * 20
        assert not any(looks([2.0, *[0.5] * 30])), "not less than half"
        config = LendingConfig(max_load=1.0, mean_s=3.0)
        assert all(looks([0.0, 2.0, 0.0, 0.0, 2.0, 0.0], config))
        assert not all(looks([0.0, 2.0, 2.0, 2.0, 2.0], config))
        assert all(looks([64.0] * 5, LendingConfig()))

    def test_a_load_that_changes_is_one_reason(self) -> None:
        """An agent sends a heartbeat at once whenever its reason changes."""
        memory, reasons = LendingMemory(), set()
        for now, load in enumerate([2.0, 1.7, 3.0, 0.8, 0.4, 0.1]):
            found, memory = decide_lending(load, None, memory, float(now), OWNED)
            reasons.add(found.why)
        (why,) = reasons
        assert "more than 1 cores" in why

    def test_yielded_until(self) -> None:
        for yield_left_s, left_s in ((25.0, 25.0), (inf, 0.0)):
            found, memory = decide_lending(0.0, yield_left_s, LendingMemory(), 5.0, OWNED)
            assert (found.lent, found.left_s) == (False, left_s)
            assert "edl agent yield" in found.why
        assert decide_lending(0.0, None, memory, 6.0, OWNED)[0].lent

    @given(
        st.lists(st.tuples(st.sampled_from([0.1, 0.4, 0.7, 1.5]), st.integers(1, 15)), min_size=4)
    )
    def test_never_lent_under_load_or_soon_after(self, runs: list[tuple[float, int]]) -> None:
        loads = [load for load, seconds in runs for _ in range(seconds)]
        for at, is_lent in enumerate(looks(loads)):
            assert not (is_lent and any(load > 1.0 for load in loads[max(0, at - 9) : at + 1]))
