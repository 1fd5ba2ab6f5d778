"""State machines that admit teachers after a probe or a health check; token buckets for peers.

`Admission` decides which registered teachers the coordinator probes, when, and which are admitted.
The probing itself is done elsewhere.

The sidecar of a foreign server registers and withdraws it by `HealthCheck`. A cheap check *asks*
the server whether it is ready. A *test* has it label a few samples and judges the labels; it finds
servers that are ready and hang, or answer nonsense. Only a test registers a server. A wrong answer
withdraws it at once, because wrong labels are worse than none; silence does so when it lasts.

A `TokenBucket` limits how much one peer may ask: it holds at most `burst` tokens and gains `per_second`
each second. A request takes tokens, or is refused when too few are left. So at most
`burst + per_second * t` pass in any t seconds, and a peer below the rate is never refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .backoff import RandomLike, delay_s

#: Probes on the way at once.
AT_ONCE = 64
#: Of these, at most so many of teachers that were asked before: the rest is kept for new ones.
AGAIN_AT_ONCE = 48
#: Seconds after which a probe that was not answered counts as lost.
LOST_S = 15.0
#: Bounds of the wait before a refused teacher is probed again, in seconds.
_BASE_S, _CAP_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class TeacherIdentity:
    """Who is admitted: another life or another address is another one."""

    teacher_id: str
    incarnation: int
    address: str


def identity_address(address: str, voucher: str, *, has_key: bool) -> str | None:
    """At which address the identity of a teacher has to be proved.

    Args:
        address: of the teacher.
        voucher: of the process that speaks for it; empty: it speaks for itself.
        has_key: whether it registered with a key, by which somebody can prove anything.

    Returns:
        None: nobody can, so it is never admitted. Whoever may write to the registry could otherwise
        offer students any server as a teacher of theirs.
    """
    return (voucher or address) if has_key else None


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What an answer to a probe means.

    Attributes:
        identity: whose.
        admitted: it may be assigned from now on.
        why: the reason of a refusal, in words.
        news: the reason differs from the last one of this identity, so it is worth telling.
    """

    identity: TeacherIdentity
    admitted: bool
    why: str
    news: bool


@dataclass(slots=True)
class _PendingTeacher:
    """A teacher that is not admitted yet. `due_s` None: never again in this life."""

    identity: TeacherIdentity
    due_s: float | None
    asks: int = 0
    refusals: int = 0
    why: str = ""
    asked_s: float | None = None


class Admission:
    """Knows who is admitted and whose probe is due.

    Args:
        rng: spreads repeated probes.
        remembered: teacher id -> incarnation that earlier leaders admitted.
    """

    def __init__(self, rng: RandomLike, remembered: Mapping[str, int] | None = None) -> None:
        self._rng = rng
        self._remembered = dict(remembered or {})
        self._admitted: dict[str, TeacherIdentity] = {}
        self._cases: dict[str, _PendingTeacher] = {}

    @property
    def refused(self) -> dict[str, str]:
        """Teacher id -> why it was refused last; without those whose first probe is not over."""
        return {name: case.why for name, case in self._cases.items() if case.why}

    def is_refused(self, teacher_id: str) -> bool:
        """Whether it is one of `refused`."""
        case = self._cases.get(teacher_id)
        return case is not None and bool(case.why)

    @property
    def waiting(self) -> int:
        """How many teachers are neither admitted nor refused yet."""
        return sum(not case.why for case in self._cases.values())

    def appeared(self, identity: TeacherIdentity, now: float) -> bool:
        """A teacher is there; returns whether it is admitted, else a probe of it is due."""
        name = identity.teacher_id
        if self._remembered.pop(name, None) == identity.incarnation and identity.incarnation:
            self._admitted[name] = identity
        if self._admitted.get(name) == identity:
            self._cases.pop(name, None)
            return True
        self._admitted.pop(name, None)
        case = self._cases.get(name)
        if case is None or case.identity != identity:
            self._cases[name] = _PendingTeacher(identity, now)
        return False

    def gone(self, teacher_id: str) -> None:
        """A teacher is not there any more; a later answer about it is not heeded."""
        self._remembered.pop(teacher_id, None)
        self._admitted.pop(teacher_id, None)
        self._cases.pop(teacher_id, None)

    def due(self, now: float) -> list[TeacherIdentity]:
        """Whom to probe now; they count as asked.

        New ones come first, then whoever waits longest. Those that were asked before never take all
        places, else the many that nobody can reach would keep out one that has just come.
        """
        asked = asked_again = 0
        ready: list[tuple[float, _PendingTeacher]] = []
        for case in self._cases.values():
            lost_s = None if case.asked_s is None else case.asked_s + LOST_S
            if lost_s is not None and now < lost_s:
                asked += 1
                asked_again += case.asks > 1
            elif case.due_s is not None and case.due_s <= now:
                ready.append((case.due_s if lost_s is None else lost_s, case))
        ready.sort(key=lambda each: each[0])
        new = [case for _, case in ready if not case.asks][: max(0, AT_ONCE - asked)]
        room = min(AT_ONCE - asked - len(new), AGAIN_AT_ONCE - asked_again)
        chosen = new + [case for _, case in ready if case.asks][: max(0, room)]
        for case in chosen:
            case.asked_s = now
            case.asks += 1
        return [case.identity for case in chosen]

    def answered(
        self,
        identity: TeacherIdentity,
        verdict: Literal["ok", "retry", "never"],
        why: str,
        now: float,
    ) -> ProbeOutcome | None:
        """A probe has ended.

        Args:
            identity: who was probed.
            verdict: it is who it says; it may be later; it never will in this life.
            why: the reason of a refusal, in words.
            now: seconds, as everywhere here.

        Returns:
            None when that teacher is not waiting any more.
        """
        case = self._cases.get(identity.teacher_id)
        if case is None or case.identity != identity:
            return None
        if verdict == "ok":
            del self._cases[identity.teacher_id]
            self._admitted[identity.teacher_id] = identity
            return ProbeOutcome(identity, True, "", news=True)
        news, case.why, case.asked_s = why != case.why, why, None
        wait_s = _BASE_S + delay_s(case.refusals, self._rng, _BASE_S, _CAP_S)
        case.due_s = now + wait_s if verdict == "retry" else None
        case.refusals += 1
        return ProbeOutcome(identity, False, why, news)


CheckMode = Literal["ask", "test"]
#: What came of a look: it is well; it does not answer; it answers what no teacher may.
CheckResult = Literal["well", "silent", "wrong"]
RegistryAction = Literal["stay", "register", "withdraw"]


@dataclass(frozen=True, slots=True)
class HealthCheckSettings:
    """How often is looked, and how long silence is borne.

    Attributes:
        every_s: seconds from the end of one look to the next, at a server that is registered.
        test_every_s: seconds from the end of one test to the next.
        strikes: silent looks in a row that put a server out.
        retry_s: most seconds between two tests of a server that is not registered.

    Raises:
        ValueError: a number that makes no sense.
    """

    every_s: float = 1.0
    test_every_s: float = 15.0
    strikes: int = 2
    retry_s: float = 10.0

    def __post_init__(self) -> None:
        if min(self.every_s, self.test_every_s, self.retry_s) <= 0 or self.strikes < 1:
            raise ValueError(f"patience needs times above 0 and at least one strike: {self}")


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What is known of one server.

    Attributes:
        registered: whether it stands in the registry.
        strikes: silent looks in a row while it is registered.
        failures: tests in a row that let it not in.
        tested_s: when the last test ended that went well; None: a test is due.
        next_check_s: when the next look is due.
    """

    registered: bool = False
    strikes: int = 0
    failures: int = 0
    tested_s: float | None = None
    next_check_s: float = 0.0


def next_check(
    health: HealthCheck, now: float, patience: HealthCheckSettings
) -> tuple[CheckMode, float]:
    """How to look next, and in how many seconds."""
    tested_s = health.tested_s
    at_s = max(health.next_check_s, now)
    due = tested_s is None or at_s >= tested_s + patience.test_every_s
    return ("test" if due or not health.registered else "ask"), at_s - now


def after_check(
    health: HealthCheck,
    look: CheckMode,
    found: CheckResult,
    now: float,
    patience: HealthCheckSettings,
    rng: RandomLike,
) -> tuple[HealthCheck, RegistryAction]:
    """A look has ended.

    Args:
        health: as it was.
        look: as `next_check` said.
        found: what came of it.
        now: seconds, as everywhere here.
        patience: how long silence is borne.
        rng: spreads repeated tests of those that are not let in.
    """
    if found == "well":
        tested_s = now if look == "test" else health.tested_s
        step: RegistryAction = "stay" if health.registered or look == "ask" else "register"
        registered = health.registered or step == "register"
        return HealthCheck(registered, 0, 0, tested_s, now + patience.every_s), step
    if not health.registered:
        return _out(health, now, patience, rng), "stay"
    strikes = health.strikes + 1
    if found == "wrong" or strikes >= patience.strikes:
        return _out(replace(health, failures=0), now, patience, rng), "withdraw"
    # One that was silent when it was tested is tested again: that it is ready is not the question.
    tested_s = None if look == "test" else health.tested_s
    return HealthCheck(True, strikes, 0, tested_s, now + patience.every_s), "stay"


def registration_failed(now: float, patience: HealthCheckSettings) -> HealthCheck:
    """It was let in, and the registry could not take it: all begins anew, with a test."""
    return HealthCheck(next_check_s=now + patience.every_s)


def _out(
    health: HealthCheck, now: float, patience: HealthCheckSettings, rng: RandomLike
) -> HealthCheck:
    wait_s = delay_s(health.failures, rng, patience.every_s, patience.retry_s)
    return HealthCheck(failures=health.failures + 1, next_check_s=now + wait_s)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit that short bursts may exceed.

    Attributes:
        per_second: what passes in the long run.
        burst: what passes at once, after a pause.
    """

    per_second: float
    burst: float

    def __post_init__(self) -> None:
        if not (0 < self.per_second < math.inf and 1 <= self.burst < math.inf):
            raise ValueError(f"a rate is above 0 and its burst at least 1, not {self}")


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """What is left for one peer.

    Attributes:
        tokens: how much may pass at `at`.
        at: when that was so, in seconds.
    """

    tokens: float
    at: float


def full_bucket(rate: RateLimit, now: float) -> TokenBucket:
    """The bucket of a peer that has asked for nothing yet."""
    return TokenBucket(rate.burst, now)


def take_tokens(
    rate: RateLimit, bucket: TokenBucket, now: float, cost: float = 1.0
) -> tuple[TokenBucket, bool]:
    """Let something pass, or not.

    Args:
        rate: the limit.
        bucket: what was left.
        now: seconds; a clock that goes back adds nothing.
        cost: tokens that it takes.

    Returns:
        What is left now, and whether it passes. What does not pass takes nothing.
    """
    gained = max(0.0, now - bucket.at) * rate.per_second
    tokens = min(rate.burst, bucket.tokens + gained)
    passes = tokens >= cost
    return TokenBucket(tokens - cost if passes else tokens, max(now, bucket.at)), passes
