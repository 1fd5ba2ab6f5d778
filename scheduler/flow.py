"""Algorithm 1 of the paper (hybrid scheduling): how much to pull, and how many teachers to ask for.

`decide` runs after every group of events and at least a few times per second. Above the volume
`ut`, pulling from the source pauses; below `lt` it resumes. Comments name the lines of the paper.
Details that the paper leaves open:

* The volume is the bytes of batches that are labelled and not yet taken.
* A pause stops only the pulling of *new* batches. The ledger also sends batches again during a
  pause, so the oldest batch always gets its labels. Pulling never pauses while the buffer is empty:
  an `ut` below one batch, or `lt` = 0, slows the stream down and never stops it.
* Batches in flight when a pause begins are still labelled. So the volume can exceed `ut`, at most
  by the batches that fill the windows of all teachers (by one batch if there is no teacher).
* Batches in flight do not count in the volume, and their number grows with the number of teachers.
  So `buffer_bytes` limits all batches of the buffer, labelled or not.
* "volume == 0" in the paper is taken to mean that the student waits and its next batch has no
  labels.

The number of wanted teachers, the *want*, is n + adjust within the bounds. n = ceil(t_t / t_s)
follows the measured times: if teachers become much slower, n rises at once. The correction `adjust`
grows when the student starves and shrinks when teachers idle. It covers what the ratio does not
express (transfer, uneven batches).

Values created with each decision are named tuples, which are faster than frozen dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from .rates import rounded_up, time_ratio

#: What the student's side is doing; see `flow.state_of`.
FlowState = Literal["starved", "source_wait", "blocked", "steady"]

#: Seconds after a change of the want in which starvation does not raise it: a new teacher needs
#: time to help. Also the seconds that a slightly higher ratio must last before n rises.
COOLDOWN_S = 2.0
#: Net seconds of starvation after which the student asks for one more teacher.
STARVED_FOR_S = 0.3
#: Share of the time that a student may starve without asking for one more teacher.
TOLERATED = 0.02
#: At most this many seconds of waiting for the source are subtracted from later starvation.
SOURCE_CREDIT_S = 1.0
#: Seconds over which a surplus is measured before a teacher is returned. Also the seconds that a
#: lower ratio must last before n falls, or before `FlowMemory.held` is released.
SURPLUS_WINDOW_S = 15.0
#: A teacher is returned if on average at least 1 + `SURPLUS_MARGIN` teachers idled.
SURPLUS_MARGIN = 0.25
#: Fewest batches to keep queued: one to send next, one that is being pulled.
MIN_READ_AHEAD = 2
#: A ratio t_t / t_s above n * (1 + this) is more than noise of measurements.
RATIO_NOISE = 0.25
#: `FlowMemory.held` is released when t_t / t_s has fallen by this share since `held` was set.
RELEASE_DROP = 0.2


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Settings of one reader's flow control.

    Attributes:
        upper_bytes: `ut` of Algorithm 1: above it no new batch is pulled.
        lower_bytes: `lt`: below it pulling resumes; 0 <= lt < ut.
        teachers_min: lower limit of the number of wanted teachers (>= 1).
        teachers_max: upper limit of this number.
        buffer_bytes: limit of labelled and unlabelled batches together (>= ut); an unlabelled one
            counts as the largest batch so far. One batch is always allowed. None: no limit.
    """

    upper_bytes: int
    lower_bytes: int
    teachers_min: int = 1
    teachers_max: int = 64
    buffer_bytes: int | None = None


class FlowView(NamedTuple):
    """The current state of the stream and its teachers.

    Most fields are those of `LedgerLoad`; the counts of batches include those that wait for the
    label store before the ledger has them.

    Attributes:
        volume_bytes: bytes of batches that are labelled and not taken.
        queued: batches that wait for a teacher or the label store.
        unlabelled: batches queued or in flight.
        window_batches: number of batches that fill the windows of all usable teachers.
        window_room: number of further requests that the windows of usable teachers allow now.
        idle: usable teachers with nothing in flight.
        teachers: number of teachers that are not revoked.
        waiting: the training loop is in a call of `next`, and the next batch has no labels yet; or
            label calls outside the loop wait, and batches are queued.
        source_ended: the source has nothing more for this epoch.
        t_t_s: seconds per sample of the average teacher; None until measured.
        t_s_s: seconds per sample of the student's step, without waits, or of the source if that is
            slower; None until measured.
        unreachable: number of assigned teachers that give no labels; their leases have not expired.
        batch_bytes: size of the largest batch so far, inputs and labels; 0 without one.
        judges: number of further teachers wanted to settle a dispute between teachers.
        presumed: at least one of the two times comes from an earlier run.
        cut_off: possibly no teacher can be reached, or none accepts the reader.
        queued_calls, unlabelled_calls: how many of `queued` and `unlabelled` belong to label calls
            outside the loop.
    """

    volume_bytes: int
    queued: int
    unlabelled: int
    window_batches: int
    window_room: int
    idle: int
    teachers: int
    waiting: bool
    source_ended: bool
    t_t_s: float | None
    t_s_s: float | None
    unreachable: int = 0
    batch_bytes: int = 0
    judges: int = 0
    presumed: bool = False
    cut_off: bool = False
    queued_calls: int = 0
    unlabelled_calls: int = 0


@dataclass(frozen=True, slots=True)
class PullTransition:
    """A pause of pulling or its end: an entry of a reader's event log.

    Attributes:
        pulling: True: pulling resumed; False: it paused.
        volume_bytes: the volume at that moment.
        threshold_bytes: `lt` if pulling resumed, `ut` if it paused.
    """

    pulling: bool
    volume_bytes: int
    threshold_bytes: int

    @property
    def why(self) -> str:
        """The reason of the transition, as text."""
        if not self.volume_bytes:
            return "nothing waits for the student"
        side = "below lt" if self.pulling else "above ut"
        return f"{self.volume_bytes} bytes wait for the student, {side} = {self.threshold_bytes}"


NOTHING_MEASURED = "nothing is measured yet"


class FlowMemory(NamedTuple):
    """State between two decisions; no decision depends on the first three fields."""

    starved_s: float = 0.0  # the student waited for labels
    blocked_s: float = 0.0  # pulling was paused
    source_wait_s: float = 0.0  # the student waited for the source

    now: float | None = None  # time of the last decision; the fields up to `idle` are from then
    state: FlowState = "steady"
    pulling: bool = True
    transition: PullTransition | None = None  # the latest; None: none yet
    short_of_teachers: bool = False  # starved, and one more teacher would have had a batch
    idle: int = 0  # idle teachers, without those that are no longer wanted

    needed: int = 0  # n; 0 while unknown
    presumed: bool = False  # n rests on times of an earlier run
    off_ratio_since: float | None = None  # since when ceil(t_t / t_s) stays above n, or below it
    off_ratio_n: int = 0  # the ceil(t_t / t_s) nearest to n since then
    adjust: int = 0  # want - n, before the bounds
    fell_to: int = 0  # the want after its latest fall; 0: it has risen since
    held: int = 0  # lower limit: the want fell below this number and rose again; 0: none
    held_ratio: float = 0.0  # t_t / t_s when `held` was set
    off_held_since: float | None = None  # since when t_t / t_s is clearly below `held_ratio`
    changed_at: float = -inf  # latest change of the want
    reason: str = NOTHING_MEASURED  # of the want, in words
    shortage_s: float = 0.0  # net seconds short of teachers; below 0: credit
    surplus_since: float = -inf  # start of the surplus window
    surplus_idle_s: float = 0.0  # teacher-seconds idle in it


class FlowDecision(NamedTuple):
    """What to do now.

    Attributes:
        pull: number of further batches that may be pulled now.
        want: number of teachers to ask the coordinator for: the want, plus replacements of
            unreachable teachers, plus judges.
        needed: n = ceil(t_t / t_s); 0 while unknown.
        state: state of the student's side.
        reason: reason of `want`.
        transition: latest pause or resumption of pulling; None: none yet.
    """

    pull: int
    want: int
    needed: int = 0
    state: FlowState = "steady"
    reason: str = NOTHING_MEASURED
    transition: PullTransition | None = None


def decide(
    view: FlowView, memory: FlowMemory, now: float, config: FlowConfig
) -> tuple[FlowDecision, FlowMemory]:
    """Run one iteration of the loop of Algorithm 1 (lines 2 to 13).

    Args:
        view: the current state (line 3: the volume).
        memory: memory of the previous decision.
        now: seconds of a clock that does not go back.
        config: the settings, the same at each call.

    Returns:
        What to do now, and the memory for the next decision.

    Raises:
        ValueError: a measured time is not positive and finite, or their ratio is not finite.
    """
    want_before, max_pull = wanted(memory, config), _batches_that_fit(view, config)
    pulling = memory.pulling
    if view.volume_bytes > config.upper_bytes:  # lines 4 to 6
        pulling = False
    elif view.volume_bytes < config.lower_bytes or view.volume_bytes == 0:  # lines 10 to 12
        pulling = True
    state = state_of(view, pulling and max_pull > 0)
    memory = observed = _observe(view, memory, state, pulling, want_before, now, config)
    ratio = None  # t_t / t_s; None while one of them is not measured
    if view.t_t_s is not None and view.t_s_s is not None:
        ratio = time_ratio(view.t_t_s, view.t_s_s)
        if memory.held:
            memory = release_want(memory, ratio, now)
        memory = follow_ratio(view, memory, ratio, now, config)
    memory = follow_load(view, memory, now, config)
    want = want_before if memory is observed else wanted(memory, config)
    if ratio is not None and want != want_before:
        memory = hold_want(memory, ratio, want_before, want)
    # Replace an unreachable teacher before its lease expires: the coordinator still counts it, so
    # ask for one more. If possibly no teacher can be reached, ask for at most one replacement for
    # each wanted teacher: the replacements may be unreachable too.
    replacements = min(view.unreachable, want) if view.cut_off else view.unreachable
    decision = FlowDecision(
        pull=_pull(view, max_pull, config) if pulling else 0,
        want=min(want + replacements + view.judges, config.teachers_max),
        needed=memory.needed,
        state=memory.state,
        reason=memory.reason,
        transition=memory.transition,
    )
    return decision, memory


def state_of(view: FlowView, pulling: bool) -> FlowState:
    """Return the state of the student's side.

    "starved": the student waits for labels; "source_wait": the student waits, and teachers have
    room for whatever the source yields; "blocked": the student does not wait, and nothing may be
    pulled (the volume is above `ut`, or falls from there, or the buffer is full); "steady":
    anything else.

    Args:
        view: the current state.
        pulling: batches may be pulled.
    """
    if view.waiting:
        has_room = pulling and view.queued == 0 and view.window_room > 0
        if not view.source_ended and (has_room or not view.unlabelled):
            return "source_wait"
        if view.unlabelled > 0:
            return "starved"
    return "steady" if pulling else "blocked"


def _pull(view: FlowView, max_pull: int, config: FlowConfig) -> int:
    """Return the number of batches to pull: the read-ahead, within the limits.

    Batches that are queued when the volume reaches `ut` will be labelled too. So the unlabelled
    batches are at most those that still fit below `ut`, and `window_batches` more (at least one).
    Only the latter can raise the volume above `ut`.
    """
    wanted_batches = max(MIN_READ_AHEAD, view.window_batches) - (view.queued - view.queued_calls)
    if view.batch_bytes:
        room = max(config.upper_bytes - view.volume_bytes, 0) // view.batch_bytes
        unlabelled = view.unlabelled - view.unlabelled_calls
        wanted_batches = min(wanted_batches, room + max(view.window_batches, 1) - unlabelled)
    return max(min(wanted_batches, max_pull), 0)


def _batches_that_fit(view: FlowView, config: FlowConfig) -> int:
    """Return how many more batches fit into `buffer_bytes`; at least one into an empty buffer."""
    if config.buffer_bytes is None:
        return max(MIN_READ_AHEAD, view.window_batches)
    unlabelled = view.unlabelled - view.unlabelled_calls
    empty = not view.volume_bytes and not unlabelled
    if not view.batch_bytes:  # the size is known from the first batch on
        return int(empty)
    used_bytes = view.volume_bytes + unlabelled * view.batch_bytes
    return max((config.buffer_bytes - used_bytes) // view.batch_bytes, int(empty))


def _observe(
    view: FlowView,
    memory: FlowMemory,
    state: FlowState,
    pulling: bool,
    want: int,
    now: float,
    config: FlowConfig,
) -> FlowMemory:
    """Account for the time since the last decision, and record the current state."""
    span_s = 0.0 if memory.now is None else max(now - memory.now, 0.0)
    transition = memory.transition
    if pulling is not memory.pulling:
        threshold_bytes = config.lower_bytes if pulling else config.upper_bytes
        transition = PullTransition(pulling, view.volume_bytes, threshold_bytes)
    surplus_since = now if memory.now is None else memory.surplus_since
    surplus_idle_s = memory.surplus_idle_s + span_s * memory.idle
    starved = state == "starved"
    if starved and (view.window_room == 0 or not pulling):
        surplus_since, surplus_idle_s = now, 0.0
    shortage_s = memory.shortage_s  # net
    if memory.short_of_teachers:
        shortage_s += span_s
    elif memory.state == "source_wait":  # the teachers keep up with the source: credit
        shortage_s = max(min(shortage_s, 0.0) - span_s, -SOURCE_CREDIT_S)
    elif shortage_s > 0:
        shortage_s = max(shortage_s - TOLERATED * span_s, 0.0)
    return memory._replace(
        starved_s=memory.starved_s + span_s * (memory.state == "starved"),
        blocked_s=memory.blocked_s + span_s * (not memory.pulling),
        source_wait_s=memory.source_wait_s + span_s * (memory.state == "source_wait"),
        now=now,
        state=state,
        pulling=pulling,
        transition=transition,
        # With a slow source the queue is empty or windows have room: more teachers do not help.
        short_of_teachers=starved
        and not view.cut_off
        and view.queued > 0
        and view.window_room == 0
        and view.teachers >= want,  # else a requested teacher is still to come
        # Teachers beyond the want are leaving: do not count them as idle.
        idle=view.idle - max(view.teachers - want, 0),
        shortage_s=shortage_s,
        surplus_since=surplus_since,
        surplus_idle_s=surplus_idle_s,
    )


def wanted(memory: FlowMemory, config: FlowConfig) -> int:
    """Return the want: the number of wanted teachers, without replacements and judges."""
    base = memory.needed or config.teachers_min
    least = max(config.teachers_min, memory.held)
    return min(max(base + memory.adjust, least), config.teachers_max)


def follow_ratio(
    view: FlowView, memory: FlowMemory, ratio: float, now: float, config: FlowConfig
) -> FlowMemory:
    """Line 1 of Algorithm 1: update n when the measured times have changed.

    Measurements scatter, and a ratio near an integer must not make n oscillate. So n rises at once
    only if the ratio clearly exceeds n. Otherwise n rises once ceil(ratio) was above n for
    `COOLDOWN_S`, and falls once ceil(ratio) was below n for `SURPLUS_WINDOW_S`. After such a wait,
    n moves to the nearest value that ceil(ratio) had meanwhile. An n that rests on times of an
    earlier run is replaced as soon as both times are measured.
    """
    is_now_measured = memory.presumed and not view.presumed
    if memory.presumed is not view.presumed:
        memory = memory._replace(presumed=view.presumed)
    n = latest = rounded_up(ratio)
    needed = memory.needed
    if n == needed:
        was_off = memory.off_ratio_since is not None
        return memory._replace(off_ratio_since=None) if was_off else memory
    since, nearest = memory.off_ratio_since, memory.off_ratio_n
    if since is None or (nearest > needed) is not (n > needed):
        since, nearest = now, n
    nearest = min(nearest, n) if n > needed else max(nearest, n)
    adjust = memory.adjust if needed else 0  # while n was unknown, adjust stood for n
    if is_now_measured:
        adjust = _adjust_after_move(adjust, n - needed)
    elif needed and ratio <= needed * (1 + RATIO_NOISE):
        patience_s = COOLDOWN_S if n > needed else SURPLUS_WINDOW_S
        if now - since < patience_s:
            return memory._replace(off_ratio_since=since, off_ratio_n=nearest)
        n = nearest
        adjust = _adjust_after_move(adjust, n - needed)
    since = None if n == latest else now
    moved = memory._replace(needed=n, adjust=adjust, off_ratio_since=since, off_ratio_n=latest)
    reason = f"n = {n} = ceil({view.t_t_s:.3g} / {view.t_s_s:.3g} s per sample)"
    if wanted(moved, config) == wanted(memory, config):
        return moved._replace(reason=reason)
    return _changed(moved, now, reason)


def _adjust_after_move(adjust: int, moved: int) -> int:
    """Return the correction `adjust` after n moved by `moved`.

    A move of n in the direction of the correction replaces an equal part of the correction.
    """
    if adjust > 0 < moved:
        return max(adjust - moved, 0)
    return min(adjust - moved, 0) if adjust < 0 > moved else adjust


def follow_load(view: FlowView, memory: FlowMemory, now: float, config: FlowConfig) -> FlowMemory:
    """Lines 7 to 9: ask for a teacher when starving; return an idle one (not in the paper)."""
    if memory.short_of_teachers and memory.shortage_s >= STARVED_FOR_S:
        want = wanted(memory, config)
        if want < config.teachers_max and now - memory.changed_at >= COOLDOWN_S:
            # A want below n fell too far, perhaps in an idle hour: go back to n in one step.
            target = min(max(want + 1, memory.needed), config.teachers_max)
            full = f"the windows of all teachers ({view.teachers}) were full"
            reason = f"starved while {full}: {target}, not {want}"
            return _changed(_with_want(memory, target, config), now, reason)
        return memory
    window_s = now - memory.surplus_since
    if window_s < SURPLUS_WINDOW_S:
        return memory
    idle = memory.surplus_idle_s / window_s
    target = min(wanted(memory, config), view.teachers) - 1
    # To go below the held number, one more teacher must idle than for other returns.
    held = min(memory.held, target) if idle >= 2 + SURPLUS_MARGIN else memory.held
    if idle >= 1 + SURPLUS_MARGIN and target >= max(config.teachers_min, held):
        reason = f"{idle:.1f} teachers of {view.teachers} idled for {window_s:.0f} s"
        return _changed(_with_want(memory._replace(held=held), target, config), now, reason)
    return memory._replace(surplus_since=now, surplus_idle_s=0.0)


def hold_want(memory: FlowMemory, ratio: float, before: int, want: int) -> FlowMemory:
    """Keep the want from oscillating: if it fell to a number and rose again, hold it above this.

    With constant rates the want settles: each number is tried at most once.

    Args:
        memory: memory of this decision so far.
        ratio: t_t / t_s.
        before: the want of the previous decision.
        want: the want of this decision.
    """
    if want < before:
        return memory._replace(fell_to=want)
    rose_again = before == memory.fell_to
    memory = memory._replace(fell_to=0)
    if not rose_again:
        return memory
    return memory._replace(held=before + 1, held_ratio=ratio, off_held_since=None)


def release_want(memory: FlowMemory, ratio: float, now: float) -> FlowMemory:
    """Release a held want once clearly fewer teachers are needed than when it was held."""
    if ratio > (1 - RELEASE_DROP) * memory.held_ratio:
        was_off = memory.off_held_since is not None
        return memory._replace(off_held_since=None) if was_off else memory
    if memory.off_held_since is None:
        return memory._replace(off_held_since=now)
    if now - memory.off_held_since < SURPLUS_WINDOW_S:
        return memory
    return memory._replace(held=0, off_held_since=None)


def _with_want(memory: FlowMemory, want: int, config: FlowConfig) -> FlowMemory:
    """Set the correction so that the want becomes `want`."""
    return memory._replace(adjust=want - (memory.needed or config.teachers_min))


def _changed(memory: FlowMemory, now: float, reason: str) -> FlowMemory:
    """Record a change of the want, and drop measurements of the old want."""
    return memory._replace(
        changed_at=now,
        reason=reason,
        short_of_teachers=False,  # until the requested teacher has come
        shortage_s=min(memory.shortage_s, 0.0),
        surplus_since=now,
        surplus_idle_s=0.0,
    )
