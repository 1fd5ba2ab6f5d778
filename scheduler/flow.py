"""Algorithm 1 of the paper (hybrid scheduling): what is pulled, and how many teachers are wanted.

`decide` runs on every event of the reader and at least some times a second. The paper's lines stand
where they are carried out, here and in `wanting`. What is made precise:

* The volume is counted in bytes, of batches that are labelled and not yet taken.
* A pause holds back *new* batches only. Resends are the ledger's, which knows of no pause, so the
  head of the line always moves. An empty buffer always pulls: an `ut` below one batch, or `lt` = 0,
  slows the stream down and never stops it.
* What is in flight when a pause begins is labelled all the same, so the volume exceeds `ut`: by no
  more than one batch per window.
* What is in flight has no part in the volume, and grows with the teachers. So besides, all batches
  of the buffer, labelled or not, have no more than `buffer_bytes`.
* "volume == 0" is measured where it hurts: the student waits, and its next batch has no labels.
"""

from __future__ import annotations

from .flow_values import FlowConfig, FlowDecision, FlowMemory, FlowView, State, Turn
from .rates import time_ratio
from .wanting import follow_need, follow_ratio, hold, release, wanted

__all__ = [
    "FlowConfig",
    "FlowDecision",
    "FlowMemory",
    "FlowView",
    "State",
    "Turn",
    "decide",
    "state_of",
]

#: Batches to keep queued however few the teachers: one to send next, one that is being pulled.
MIN_READ_AHEAD = 2


def decide(
    view: FlowView, memory: FlowMemory, now: float, config: FlowConfig
) -> tuple[FlowDecision, FlowMemory]:
    """One turn of the loop of Algorithm 1 (lines 2 to 13).

    Args:
        view: what is the case now (line 3: the volume).
        memory: what the last decision left.
        now: seconds of a clock that does not go back.
        config: the settings, the same at each call.

    Raises:
        ValueError: a measured time is not positive.
    """
    before, fits = wanted(memory, config), _fit(view, config)
    pulling = _pulling(view, memory.pulling, config)
    state = state_of(view, pulling and fits > 0)
    memory = _observe(view, memory, state, pulling, before, now, config)
    ratio = None  # t_t / t_s; None while one of them is not measured
    if view.t_t_s is not None and view.t_s_s is not None:
        ratio = time_ratio(view.t_t_s, view.t_s_s)
        if memory.held:
            memory = release(memory, ratio, now, config)
        memory = follow_ratio(view, memory, ratio, now, config)
    memory = follow_need(view, memory, now, config)
    own = wanted(memory, config)
    if ratio is not None and own != before:
        memory = hold(memory, ratio, before, own)
    # One that does not answer is replaced at once, not when its lease runs out: it is wanted
    # besides, for as long as the coordinator counts it among those it has given. If none can be
    # reached, each is replaced once at most: the others may be out of reach as well.
    stand_ins = min(view.unreachable, own) if view.cut_off else view.unreachable
    decision = FlowDecision(
        pull=_pull(view, fits, config) if pulling else 0,
        want=min(own + stand_ins + view.judges, config.teachers_max),
        needed=memory.needed,
        state=memory.state,
        reason=memory.reason,
        turn=memory.turn,
    )
    return decision, memory


def state_of(view: FlowView, pulling: bool) -> State:
    """What the student's side is doing.

    "starved": it waits for labels; "source_wait": it waits, and teachers have room for whatever the
    source may yield; "blocked": it does not wait, and the volume is above `ut` or on its way down
    from there, or the buffer is full; "steady": anything else.

    Args:
        view: what is the case.
        pulling: whether batches may be pulled.
    """
    if view.waiting:
        has_room = pulling and view.queued == 0 and view.free_windows > 0
        if not view.source_ended and (has_room or not view.unlabelled):
            return "source_wait"
        if view.unlabelled > 0:
            return "starved"
    return "steady" if pulling else "blocked"


def _pulling(view: FlowView, pulling: bool, config: FlowConfig) -> bool:
    """Lines 4 to 6 and 10 to 12: pause above `ut`, go on below `lt`, in between as before."""
    if view.volume_bytes > config.upper_bytes:
        return False
    if view.volume_bytes < config.lower_bytes or view.volume_bytes == 0:
        return True
    return pulling


def _turn(view: FlowView, pulling: bool, config: FlowConfig) -> Turn:
    return Turn(pulling, view.volume_bytes, config.lower_bytes if pulling else config.upper_bytes)


def _pull(view: FlowView, fits: int, config: FlowConfig) -> int:
    """Batches to pull: the read-ahead, as long as all that is pulled fits.

    What is queued when the volume comes to `ut` will be labelled too. So no more is unlabelled than
    one batch for each window besides those that the volume has room for: it never exceeds `ut` by
    more than one batch per window.
    """
    wanted_batches = max(MIN_READ_AHEAD, view.windows) - view.queued
    if view.batch_bytes:
        room = max(config.upper_bytes - view.volume_bytes, 0) // view.batch_bytes
        wanted_batches = min(wanted_batches, room + max(view.windows, 1) - view.unlabelled)
    return max(min(wanted_batches, fits), 0)


def _fit(view: FlowView, config: FlowConfig) -> int:
    """Batches that fit into `buffer_bytes` besides those that are there; one if there is none."""
    if config.buffer_bytes is None:
        return max(MIN_READ_AHEAD, view.windows)
    empty = not view.volume_bytes and not view.unlabelled
    if not view.batch_bytes:  # how large one is, the first one tells
        return int(empty)
    held = view.volume_bytes + view.unlabelled * view.batch_bytes
    return max((config.buffer_bytes - held) // view.batch_bytes, int(empty))


def _observe(
    view: FlowView,
    memory: FlowMemory,
    state: State,
    pulling: bool,
    want: int,
    now: float,
    config: FlowConfig,
) -> FlowMemory:
    """Book the time since the last decision on what was the case then; see what is now."""
    span_s = 0.0 if memory.now is None else max(now - memory.now, 0.0)
    surplus_since = now if memory.now is None else memory.surplus_since
    surplus_idle_s = memory.surplus_idle_s + span_s * memory.idle
    starved = state == "starved"
    if starved and (view.free_windows == 0 or not pulling):
        surplus_since, surplus_idle_s = now, 0.0
    return memory._replace(
        starved_s=memory.starved_s + span_s * (memory.state == "starved"),
        blocked_s=memory.blocked_s + span_s * (not memory.pulling),
        source_wait_s=memory.source_wait_s + span_s * (memory.state == "source_wait"),
        now=now,
        state=state,
        pulling=pulling,
        turn=memory.turn if pulling is memory.pulling else _turn(view, pulling, config),
        # A slow source leaves the queue empty or windows open: it is not cured by teachers.
        hungry=starved
        and not view.cut_off
        and view.queued > 0
        and view.free_windows == 0
        and view.teachers >= want,  # else the one asked for is still to come
        # Those beyond the want are on their way out: that they idle says nothing of the others.
        idle=view.idle - max(view.teachers - want, 0),
        hunger_s=_hunger_s(memory, span_s, config),
        surplus_since=surplus_since,
        surplus_idle_s=surplus_idle_s,
    )


def _hunger_s(memory: FlowMemory, span_s: float, config: FlowConfig) -> float:
    """The balance of hungry time, after `span_s` more of what was the case."""
    if memory.hungry:
        return memory.hunger_s + span_s
    if memory.state == "source_wait":  # the teachers have kept up with the source: to their credit
        return max(min(memory.hunger_s, 0.0) - span_s, -config.source_credit_s)
    if memory.hunger_s > 0:
        return max(memory.hunger_s - config.tolerated * span_s, 0.0)
    return memory.hunger_s
