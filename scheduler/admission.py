"""State machines that admit teachers after a probe or a health check; token buckets for peers.

`Admission` decides which registered teachers the coordinator probes, when, and which are admitted.
The probing itself is done elsewhere.

The sidecar of a foreign server registers and withdraws the server as `HealthCheck` decides. A cheap
check *asks* the server whether it is ready. A *test* has it label a few samples and judges the
labels; it finds servers that are ready and hang, or answer nonsense. Only a test registers a
server. A wrong answer withdraws it at once, because wrong labels are worse than none; silence does
so when it lasts.

A `TokenBucket` limits how much one peer may ask. It holds at most `burst` tokens and gains
`per_second` each second. A request takes one, or is refused when none is left. So at most
`burst + per_second * t` pass in any t seconds, and a peer below the rate is never refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .backoff import RandomLike, delay_s

#: Most concurrent probes.
AT_ONCE = 64
#: Most concurrent probes of teachers that were probed before; the rest is kept for new ones.
AGAIN_AT_ONCE = 48
#: Seconds after which an unanswered probe counts as lost.
LOST_S = 15.0
#: Bounds of the wait before a refused teacher is probed again, in seconds.
_BASE_S, _CAP_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class TeacherIdentity:
    """The identity that is admitted: another incarnation or address is another identity."""

    teacher_id: str
    incarnation: int
    address: str


def identity_address(address: str, sidecar: str, *, has_key: bool) -> str | None:
    """Return the address at which a teacher's identity is proved.

    Args:
        address: address of the teacher.
        sidecar: address of its sidecar; empty: it proves its identity itself.
        has_key: it registered with a key, without which nothing can be proved.

    Returns:
        The address; None: no proof is possible, so the teacher is never admitted. If it were,
        anyone with access to the registry could offer students any server as a teacher.
    """
    return (sidecar or address) if has_key else None


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Result of a probe.

    Attributes:
        identity: the probed teacher.
        admitted: it may be assigned from now on.
        why: reason of a refusal.
        news: the reason differs from the previous one of this identity, so it is worth logging.
    """

    identity: TeacherIdentity
    admitted: bool
    why: str
    news: bool


@dataclass(slots=True)
class _PendingTeacher:
    """A teacher that is not admitted yet. `due_s` None: not probed again in this incarnation."""

    identity: TeacherIdentity
    due_s: float | None
    asks: int = 0
    refusals: int = 0
    why: str = ""
    asked_s: float | None = None


class Admission:
    """Decides which teachers are admitted and when each is probed.

    Args:
        rng: jitters repeated probes.
        remembered: incarnations that earlier leaders admitted, by teacher id.
    """

    def __init__(self, rng: RandomLike, remembered: Mapping[str, int] | None = None) -> None:
        self._rng = rng
        self._remembered = dict(remembered or {})
        self._admitted: dict[str, TeacherIdentity] = {}
        self._cases: dict[str, _PendingTeacher] = {}

    @property
    def refused(self) -> dict[str, str]:
        """Latest reason of each refused teacher, by id; not of teachers in their first probe."""
        return {name: case.why for name, case in self._cases.items() if case.why}

    def is_refused(self, teacher_id: str) -> bool:
        case = self._cases.get(teacher_id)
        return case is not None and bool(case.why)

    @property
    def waiting(self) -> int:
        """Number of teachers that are neither admitted nor refused yet."""
        return sum(not case.why for case in self._cases.values())

    def appeared(self, identity: TeacherIdentity, now: float) -> bool:
        """Record a teacher; return whether it is admitted, else its probe is due."""
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
        """Forget a teacher that is gone; later answers about it are ignored."""
        self._remembered.pop(teacher_id, None)
        self._admitted.pop(teacher_id, None)
        self._cases.pop(teacher_id, None)

    def due(self, now: float) -> list[TeacherIdentity]:
        """Return the teachers to probe now, and mark them as being probed.

        New teachers come first, then those that have waited longest. Repeated probes never fill all
        places, so many unreachable teachers cannot keep out a new one.
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
        """Record the result of a probe.

        Args:
            identity: the probed teacher.
            verdict: "ok": its identity is proved; "retry": it may be later; "never": not in this
                incarnation.
            why: reason of a refusal.
            now: seconds of a monotonic clock, as everywhere here.

        Returns:
            None if that teacher does not wait for a probe any more.
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
#: Result of a check. "silent": no answer; "wrong": an answer that no teacher may give.
CheckResult = Literal["well", "silent", "wrong"]
RegistryAction = Literal["stay", "register", "withdraw"]

#: Consecutive silent checks that withdraw a server.
STRIKES = 2
#: Longest time in seconds between two tests of a server that is not registered.
RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class HealthCheckSettings:
    """Intervals of the health checks.

    Attributes:
        every_s: seconds from the end of one check to the next, while the server is registered.
        test_every_s: seconds from the end of one test to the next.

    Raises:
        ValueError: a number is out of range.
    """

    every_s: float = 1.0
    test_every_s: float = 15.0

    def __post_init__(self) -> None:
        if min(self.every_s, self.test_every_s) <= 0:
            raise ValueError(
                "every_s and test_every_s must be above 0,"
                f" not {self.every_s} and {self.test_every_s}"
            )


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Health of one server.

    Attributes:
        registered: it is in the registry.
        strikes: consecutive silent checks while it is registered.
        failures: consecutive failed tests while it is not.
        tested_s: end of the latest passed test; None: a test is due.
        next_check_s: when the next check is due.
    """

    registered: bool = False
    strikes: int = 0
    failures: int = 0
    tested_s: float | None = None
    next_check_s: float = 0.0


def next_check(
    health: HealthCheck, now: float, settings: HealthCheckSettings
) -> tuple[CheckMode, float]:
    """Return the mode of the next check, and the seconds until it."""
    tested_s = health.tested_s
    at_s = max(health.next_check_s, now)
    due = tested_s is None or at_s >= tested_s + settings.test_every_s
    return ("test" if due or not health.registered else "ask"), at_s - now


def after_check(
    health: HealthCheck,
    mode: CheckMode,
    result: CheckResult,
    now: float,
    settings: HealthCheckSettings,
    rng: RandomLike,
) -> tuple[HealthCheck, RegistryAction]:
    """Return the state after a check, and what to do at the registry.

    Args:
        health: the state before.
        mode: the mode, from `next_check`.
        result: the result.
        now: seconds of a monotonic clock.
        settings: the settings.
        rng: jitters repeated tests of servers that are not registered.
    """
    if result == "well":
        tested_s = now if mode == "test" else health.tested_s
        step: RegistryAction = "stay" if health.registered or mode == "ask" else "register"
        registered = health.registered or step == "register"
        return HealthCheck(registered, 0, 0, tested_s, now + settings.every_s), step
    if not health.registered:
        return _out(health, now, settings, rng), "stay"
    strikes = health.strikes + 1
    if result == "wrong" or strikes >= STRIKES:
        return _out(replace(health, failures=0), now, settings, rng), "withdraw"
    # After a silent test, test again: being ready would prove nothing.
    tested_s = None if mode == "test" else health.tested_s
    return HealthCheck(True, strikes, 0, tested_s, now + settings.every_s), "stay"


def registration_failed(now: float, settings: HealthCheckSettings) -> HealthCheck:
    """Return the state after the registry refused a server that passed its test: test it again."""
    return HealthCheck(next_check_s=now + settings.every_s)


def _out(
    health: HealthCheck, now: float, settings: HealthCheckSettings, rng: RandomLike
) -> HealthCheck:
    wait_s = delay_s(health.failures, rng, settings.every_s, RETRY_S)
    return HealthCheck(failures=health.failures + 1, next_check_s=now + wait_s)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate limit that short bursts may exceed.

    Attributes:
        per_second: tokens per second in the long run (> 0).
        burst: most tokens at once, after a pause (>= 1).
    """

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Tokens left for one peer.

    Attributes:
        tokens: number of tokens at `at`.
        at: time in seconds.
    """

    tokens: float
    at: float


def full_bucket(rate: RateLimit, now: float) -> TokenBucket:
    """Return the bucket of a new peer."""
    return TokenBucket(rate.burst, now)


def take_token(rate: RateLimit, bucket: TokenBucket, now: float) -> tuple[TokenBucket, bool]:
    """Take a token if one is left.

    Args:
        rate: the limit.
        bucket: the bucket before.
        now: seconds; a clock that goes back adds nothing.

    Returns:
        The bucket after, and whether the token was taken.
    """
    gained = max(0.0, now - bucket.at) * rate.per_second
    tokens = min(rate.burst, bucket.tokens + gained)
    passes = tokens >= 1
    return TokenBucket(tokens - 1 if passes else tokens, max(now, bucket.at)), passes
