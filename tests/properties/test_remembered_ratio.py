"""An n that an earlier run has left counts until this one has measured its own, and not longer."""

from __future__ import annotations

from math import ceil

from hypothesis import example, given
from hypothesis import strategies as st

from edl.scheduler.flow import FlowConfig, FlowMemory, FlowView, decide
from edl.scheduler.ratio import time_ratio

CONFIG = FlowConfig(upper_bytes=1000, lower_bytes=400)
T_S_S = 0.01
RATIOS = st.floats(0.01, 60.0)


def view(ratio: float, teachers: int, *, presumed: bool) -> FlowView:
    """The student is busy, and has two batches to go on with."""
    t_t_s = ratio * T_S_S
    return FlowView(500, 1, 3, 2, 2, 0, 0, teachers, False, False, t_t_s, T_S_S, presumed=presumed)


def n_of(ratio: float) -> int:
    return ceil(time_ratio(ratio * T_S_S, T_S_S))


@given(RATIOS, RATIOS, st.floats(0.0, 60.0))
@example(5.0, 4.9, 0.0)
@example(3.0, 3.1, 0.0)
def test_what_is_measured_replaces_at_once_what_was_remembered(
    remembered: float, measured: float, after_s: float
) -> None:
    first, memory = decide(view(remembered, 1, presumed=True), FlowMemory.start(), 1000.0, CONFIG)
    assert first.needed == n_of(remembered)
    now = 1000.0 + after_s
    second, _ = decide(view(measured, first.want, presumed=False), memory, now, CONFIG)
    assert second.needed == second.want == n_of(measured)


@given(st.integers(2, 50))
def test_what_is_measured_again_replaces_nothing_at_once(n: int) -> None:
    memory = FlowMemory.start()
    for ratio in (n - 0.5, n - 1.5):
        decision, memory = decide(view(ratio, n, presumed=False), memory, 1000.0, CONFIG)
        assert decision.needed == n
