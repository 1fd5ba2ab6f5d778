"""What a reader sees of its flow, and one that asks what to do at each tick."""

from __future__ import annotations

from typing import Any

from edl.scheduler.flow import FlowConfig, FlowDecision, FlowMemory, FlowView, decide

TICK_S = 0.05
CONFIG = FlowConfig(upper_bytes=1000, lower_bytes=400)

#: One teacher of window 2, the buffer half full, the student busy with a batch.
CALM = FlowView(
    volume_bytes=500,
    queued=1,
    unlabelled=3,
    deliverable=2,
    windows=2,
    free_windows=0,
    idle=0,
    teachers=1,
    waiting=False,
    source_ended=False,
    t_t_s=None,
    t_s_s=None,
)
STARVED = CALM._replace(volume_bytes=0, deliverable=0, waiting=True)
SOURCE_WAIT = STARVED._replace(queued=0, unlabelled=0, free_windows=2, idle=1)
PAUSED = CALM._replace(volume_bytes=1001, queued=0, unlabelled=0, free_windows=2, idle=1)
FIVE_NEEDED: dict[str, Any] = {"t_t_s": 0.05, "t_s_s": 0.01}


class Flow:
    """Calls `decide` at each tick, as a reader does."""

    def __init__(self, config: FlowConfig = CONFIG) -> None:
        self.config = config
        self.memory = FlowMemory.start()
        self.now = 1000.0

    def see(self, view: FlowView) -> FlowDecision:
        decision, self.memory = decide(view, self.memory, self.now, self.config)
        return decision

    def run(self, view: FlowView, seconds: float) -> FlowDecision:
        decision = self.see(view)
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            decision = self.see(view)
        return decision

    def run_granted(self, view: FlowView, seconds: float) -> FlowDecision:
        """As `run`, with a coordinator that gives whatever is wanted."""
        decision = self.see(view)
        for _ in range(round(seconds / TICK_S)):
            decision = self.run(view._replace(teachers=decision.want), TICK_S)
        return decision
