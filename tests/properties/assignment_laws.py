"""What every assignment must obey, whatever led to it: the laws that the property tests check.

They are computed from the bare state, by other means than the rule: by looking at all pairs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from edl.scheduler import assignment

EPS = 1e-6
NOTHING, A_PART, BELOW_MIN, BELOW_NEED, SERVED = range(5)

Claim = tuple[int, int, float]


class Pool:
    """The teachers that serve one content and the students that are on it."""

    def __init__(self, state: assignment.AssignmentState, content: str) -> None:
        self.power = {
            name: entry.power
            for name, entry in state.teachers.items()
            if entry.content_id == content and not entry.draining
        }
        entries = state.students.items()
        held = {name: entry for name, entry in entries if entry.content_id == content}
        #: Teachers that give labels to nobody who holds them, so that they count for nothing.
        self.silent = {
            teacher
            for entry in held.values()
            for teacher in entry.teachers
            if all(
                teacher in other.unavailable for other in held.values() if teacher in other.teachers
            )
        }
        self.holding_silent = {
            name for name, entry in held.items() if not self.silent.isdisjoint(entry.teachers)
        }
        self.students = {
            name: replace(
                entry, teachers=tuple(one for one in entry.teachers if one not in self.silent)
            )
            for name, entry in held.items()
        }
        self.holders: dict[str, list[str]] = defaultdict(list)
        for name, entry in self.students.items():
            for teacher in entry.teachers:
                self.holders[teacher].append(name)
        self.idle = [name for name in self.power if name not in {*self.holders, *self.silent}]
        self.asking = {name: entry for name, entry in self.students.items() if entry.need > 0}

    def part(self, student: str, teacher: str) -> float:
        return min(1.0, self.students[student].need / self.power[teacher])

    def load(self, teacher: str) -> float:
        return sum(self.part(name, teacher) for name in self.holders[teacher])

    def shares(self, student: str) -> bool:
        return any(len(self.holders[name]) > 1 for name in self.students[student].teachers)

    def level(self, student: str) -> float:
        return sum(
            self.power[name]
            if len(self.holders[name]) == 1
            else self.power[name] * self.part(student, name) / max(1.0, self.load(name))
            for name in self.students[student].teachers
        )

    def claim(self, student: str, without: float = 0.0) -> Claim:
        entry = self.students[student]
        level = self.level(student) - without
        heads = len(entry.teachers) - (without > 0)
        if heads == 0:
            return NOTHING, -entry.priority, 0.0
        if level >= entry.need - EPS:
            kind = SERVED
        elif self.shares(student):
            kind = A_PART
        else:
            kind = BELOW_MIN if heads < entry.min else BELOW_NEED
        return kind, -entry.priority, round(level, 6)


def pools(state: assignment.AssignmentState) -> Iterator[Pool]:
    contents = {entry.content_id for entry in state.students.values()}
    return (Pool(state, content) for content in sorted(contents))


def check(state: assignment.AssignmentState) -> None:
    for pool in pools(state):
        _only_what_is_there(pool)
        _nobody_has_nothing(pool)
        _own_teachers_or_a_part_of_one(pool)
        _nothing_idles_that_is_wanted(pool)
        _nothing_is_held_in_vain(pool)
        _who_has_enough_keeps_no_silent_one(pool)
        _nobody_else_has_more_right_to_a_teacher(pool)
        _shares_are_even(pool)
        _no_power_lies_waste(pool)
        if crowded(pool):
            _no_place_is_much_better_for_less_priority(pool)


def _only_what_is_there(pool: Pool) -> None:
    for entry in pool.students.values():
        assert set(entry.teachers) <= set(pool.power), "not serving, or of another content"
        assert len(set(entry.teachers)) == len(entry.teachers), "held twice"


def _nobody_has_nothing(pool: Pool) -> None:
    for name, entry in pool.students.items():
        if entry.want == 0:
            assert entry.teachers == ()
        elif pool.power.keys() - pool.silent:
            assert entry.teachers, f"{name} has nothing"


def _own_teachers_or_a_part_of_one(pool: Pool) -> None:
    for name, entry in pool.students.items():
        assert len(entry.teachers) == 1 or not pool.shares(name), "holds several, and a part of one"


def _nothing_idles_that_is_wanted(pool: Pool) -> None:
    if pool.idle:
        for name, entry in pool.asking.items():
            assert pool.level(name) >= entry.need - EPS, f"{pool.idle} idle while {name} lacks some"
            if max(pool.power[teacher] for teacher in pool.idle) >= entry.need - EPS:
                assert not pool.shares(name), f"{pool.idle} idle while {name} shares"


def _nothing_is_held_in_vain(pool: Pool) -> None:
    for name, entry in pool.asking.items():
        if len(entry.teachers) > 1:
            least = min(pool.power[teacher] for teacher in entry.teachers)
            assert pool.level(name) - least < entry.need - EPS, f"{name} holds more than it needs"


def _who_has_enough_keeps_no_silent_one(pool: Pool) -> None:
    for name in pool.holding_silent:
        assert pool.level(name) < pool.students[name].need - EPS


def _nobody_else_has_more_right_to_a_teacher(pool: Pool) -> None:
    """Max-min fairness, min before priority before level: nobody could give one to a stronger."""
    claims = {name: pool.claim(name) for name in pool.asking}
    lacking = {name: claim for name, claim in claims.items() if claim[0] != SERVED}
    if not lacking:
        return
    strongest = min(lacking, key=lambda name: lacking[name])
    for name, entry in pool.asking.items():
        if len(entry.teachers) < 2:
            continue
        after = pool.claim(name, min(pool.power[teacher] for teacher in entry.teachers))
        assert after <= lacking[strongest], f"{strongest} has more right than {name}"


def _shares_are_even(pool: Pool) -> None:
    singles = [
        teacher
        for teacher, names in pool.holders.items()
        if all(len(pool.students[name].teachers) == 1 for name in names)
    ]
    for teacher, names in pool.holders.items():
        load = pool.load(teacher)
        if len(names) < 2 or load <= 1 + EPS:
            continue
        for name in names:
            for other in singles:
                if other != teacher:
                    there = pool.load(other) + pool.part(name, other)
                    assert there >= load - EPS, f"{name} would have more at {other}"


def _no_power_lies_waste(pool: Pool) -> None:
    """Nobody has a powerful teacher that another lacks, when a weaker one of the other would do."""
    own = [name for name in pool.asking if not pool.shares(name)]
    spare = {name: pool.level(name) - pool.asking[name].need for name in own}
    for short in own:
        for rich in own:
            if spare[short] < -EPS and spare[rich] > EPS:
                for weak in pool.asking[short].teachers:
                    for strong in pool.asking[rich].teachers:
                        gain = pool.power[strong] - pool.power[weak]
                        assert not EPS < gain <= spare[rich], f"{short} wants {strong} of {rich}"


def crowded(pool: Pool) -> bool:
    """Whether some share: then places are kept unless another is much better."""
    return any(pool.shares(name) for name in pool.asking)


def _no_place_is_much_better_for_less_priority(pool: Pool) -> None:
    most = max(pool.power.values(), default=0.0)
    single = [name for name, entry in pool.asking.items() if len(entry.teachers) == 1]
    for name in single:
        for other in single:
            mine, theirs = pool.asking[name], pool.asking[other]
            alike = round(min(mine.need, most), 6) == round(min(theirs.need, most), 6)
            if mine.priority > theirs.priority and alike:
                same = pool.power[mine.teachers[0]] == pool.power[theirs.teachers[0]]
                assert not same or pool.level(other) < 1.5 * pool.level(name)


def outcome(state: assignment.AssignmentState) -> dict[str, Counter[tuple[int, float]]]:
    """What decides whether two assignments are as good: by content, levels by priority."""
    return {
        next(iter(pool.students.values())).content_id: Counter(
            (0 if crowded(pool) else entry.priority, round(pool.level(name), 6))
            for name, entry in pool.asking.items()
        )
        for pool in pools(state)
    }


def slow_jobs(state: assignment.AssignmentState) -> dict[tuple[str, int], tuple[Claim, int]]:
    """By content and priority: the strongest claim that is left, and how many jobs have it."""
    found: dict[tuple[str, int], tuple[Claim, int]] = {}
    for pool in pools(state):
        left: dict[int, set[tuple[Claim, str]]] = defaultdict(set)
        for name, entry in pool.asking.items():
            if pool.claim(name)[0] != SERVED:
                left[entry.priority].add((pool.claim(name), name.rpartition("/")[0]))
        for priority, claims in left.items():
            slowest = min(claim for claim, _ in claims)
            content = next(iter(pool.students.values())).content_id
            found[content, priority] = slowest, sum(claim == slowest for claim, _ in claims)
    return found


def from_nothing(state: assignment.AssignmentState, now: float) -> assignment.AssignmentState:
    entries = state.students.items()
    bare = {
        name: replace(entry, teachers=(), finishing=(), unavailable=frozenset())
        for name, entry in entries
    }
    return _again(replace(state, students=bare), now)


def settled(state: assignment.AssignmentState, now: float) -> bool:
    """Whether looking at it once more moves nothing."""
    after = _again(state, now).students
    return all(entry.teachers == after[name].teachers for name, entry in state.students.items())


def _again(state: assignment.AssignmentState, now: float) -> assignment.AssignmentState:
    state, _ = assignment.reduce(state, [assignment.StudentReported("nobody/0", 0)], now)
    state, _ = assignment.reduce(state, [assignment.StudentGone("nobody/0")], now)
    return state
