"""State machines that admit teachers after a probe or a health check; token buckets for peers.

`Admission` decides which registered teachers the coordinator probes, when, and which are admitted.
The caller does the probing.

A foreign server (of another project) is registered and withdrawn by its sidecar, as `after_check`
decides. A cheap check *asks* the server whether it is ready. A *test* makes the server label a few
samples and judges the labels, so it also finds servers that claim to be ready but hang or answer
nonsense. Only a passed test registers a server. A wrong answer withdraws it at once, because wrong
labels are worse than none. Silence withdraws it after `STRIKES` consecutive checks.

A `TokenBucket` limits the requests of one peer. It holds at most `burst` tokens and gains
`per_second` each second. A request takes one token, and is refused if none is left. So at most
`burst + per_second * t` requests pass in any t seconds. A peer that sends evenly, at less than the
rate, is never refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .backoff import RandomLike, delay_s

#: Limit of concurrent probes.
MAX_PROBES = 64
#: Limit of concurrent probes of teachers that were probed before; the rest is kept for new ones.
MAX_REPEATED_PROBES = 48
#: Seconds after which an unanswered probe counts as lost.
PROBE_TIMEOUT_S = 15.0
#: After a refusal that may end ("retry"), the next probe follows after `_BASE_S` seconds plus a
#: random wait of at most `_CAP_S`.
_BASE_S, _CAP_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class TeacherIdentity:
    """One incarnation of a teacher at one address; each identity is admitted separately."""

    teacher_id: str
    incarnation: int
    address: str


def identity_address(address: str, sidecar: str, *, has_key: bool) -> str | None:
    """Return the address at which a teacher's identity is proved.

    Args:
        address: address of the teacher.
        sidecar: address of its sidecar; empty: the teacher proves its identity itself.
        has_key: the teacher has registered a key. Without a key it cannot prove its identity.

    Returns:
        The address; None: no proof is possible, so the teacher is never admitted. Without proofs,
        anyone with access to the registry could offer students any server as a teacher.
    """
    return (sidecar or address) if has_key else None


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Result of a probe.

    Attributes:
        identity: the probed teacher.
        admitted: it may be assigned from now on.
        why: reason of a refusal; empty: admitted.
        should_log: it is an admission, or a refusal for another reason than the previous one.
    """

    identity: TeacherIdentity
    admitted: bool
    why: str
    should_log: bool


@dataclass(slots=True)
class _PendingTeacher:
    """A teacher that is not admitted yet."""

    identity: TeacherIdentity
    due_s: float | None  # time of the next probe; None: not probed again in this incarnation
    probes: int = 0
    refusals: int = 0
    why: str = ""  # reason of the latest refusal; empty: none
    probed_s: float | None = None  # start of the probe without a result; None: there is none


class Admission:
    """Decides which teachers are admitted and when each is probed.

    Args:
        rng: jitters repeated probes.
        remembered: incarnations that earlier leaders admitted, by teacher id. They are admitted
            without a probe.
    """

    def __init__(self, rng: RandomLike, remembered: Mapping[str, int] | None = None) -> None:
        self._rng = rng
        self._remembered = dict(remembered or {})
        self._admitted: dict[str, TeacherIdentity] = {}
        self._pending: dict[str, _PendingTeacher] = {}

    @property
    def refused(self) -> dict[str, str]:
        """Reason of the latest refusal of each refused teacher, by id."""
        return {name: pending.why for name, pending in self._pending.items() if pending.why}

    def is_refused(self, teacher_id: str) -> bool:
        pending = self._pending.get(teacher_id)
        return pending is not None and bool(pending.why)

    @property
    def waiting(self) -> int:
        """Number of teachers that are neither admitted nor refused yet."""
        return sum(not pending.why for pending in self._pending.values())

    def appeared(self, identity: TeacherIdentity, now: float) -> bool:
        """Record a registered teacher; return whether it is admitted.

        A new identity that is not admitted becomes `due` for a probe.
        """
        name = identity.teacher_id
        if self._remembered.pop(name, None) == identity.incarnation and identity.incarnation:
            self._admitted[name] = identity
        if self._admitted.get(name) == identity:
            self._pending.pop(name, None)
            return True
        self._admitted.pop(name, None)
        pending = self._pending.get(name)
        if pending is None or pending.identity != identity:
            self._pending[name] = _PendingTeacher(identity, now)
        return False

    def gone(self, teacher_id: str) -> None:
        """Forget a teacher that is gone; its probes count only if it returns unchanged."""
        self._remembered.pop(teacher_id, None)
        self._admitted.pop(teacher_id, None)
        self._pending.pop(teacher_id, None)

    def due(self, now: float) -> list[TeacherIdentity]:
        """Return the teachers to probe now, and mark them as being probed.

        New teachers come first, then those that have waited longest. Repeated probes never take all
        of `MAX_PROBES`, so teachers that stay unreachable cannot keep out new ones.
        """
        running = running_repeated = 0
        ready: list[tuple[float, _PendingTeacher]] = []  # with the time since which each waits
        for pending in self._pending.values():
            lost_s = None if pending.probed_s is None else pending.probed_s + PROBE_TIMEOUT_S
            if lost_s is not None and now < lost_s:
                running += 1
                running_repeated += pending.probes > 1
            elif pending.due_s is not None and pending.due_s <= now:
                ready.append((pending.due_s if lost_s is None else lost_s, pending))
        ready.sort(key=lambda pair: pair[0])
        room = max(0, MAX_PROBES - running)
        new = [pending for _, pending in ready if not pending.probes][:room]
        room = min(MAX_PROBES - running - len(new), MAX_REPEATED_PROBES - running_repeated)
        chosen = new + [pending for _, pending in ready if pending.probes][: max(0, room)]
        for pending in chosen:
            pending.probed_s = now
            pending.probes += 1
        return [pending.identity for pending in chosen]

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
            verdict: "ok": its identity is proved; "retry": a later probe may prove it; "never": no
                probe of this incarnation will.
            why: reason of a refusal.
            now: seconds of a monotonic clock, as in all methods.

        Returns:
            The outcome; None: this identity was admitted meanwhile, has gone, or was replaced.
        """
        pending = self._pending.get(identity.teacher_id)
        if pending is None or pending.identity != identity:
            return None
        if verdict == "ok":
            del self._pending[identity.teacher_id]
            self._admitted[identity.teacher_id] = identity
            return ProbeOutcome(identity, True, "", should_log=True)
        should_log, pending.why, pending.probed_s = why != pending.why, why, None
        wait_s = _BASE_S + delay_s(pending.refusals, self._rng, _BASE_S, _CAP_S)
        pending.due_s = now + wait_s if verdict == "retry" else None
        pending.refusals += 1
        return ProbeOutcome(identity, False, why, should_log)


#: "ask" whether the server is ready, or "test" the labels of a few samples.
CheckMode = Literal["ask", "test"]
#: Result of a check. "silent": no answer; "wrong": an answer that no teacher may give.
CheckResult = Literal["well", "silent", "wrong"]
RegistryAction = Literal["stay", "register", "withdraw"]

#: Consecutive silent checks that withdraw a server.
STRIKES = 2
#: Longest pause in seconds after a failed test of a server that is not registered.
RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class HealthCheckSettings:
    """Intervals of the health checks.

    Attributes:
        every_s: seconds from the end of one check to the next while the server is registered.
            While it is not registered, the base of the exponential backoff between its tests.
        test_every_s: seconds from the end of a passed test to the next test.

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
class ServerHealth:
    """Health of one server.

    Attributes:
        registered: it is in the registry.
        strikes: consecutive silent checks while it is registered.
        failures: consecutive failed tests while it is not registered; the check that withdrew it
            counts too.
        tested_s: end of the latest passed test; None: a test is due.
        next_check_s: when the next check is due.
    """

    registered: bool = False
    strikes: int = 0
    failures: int = 0
    tested_s: float | None = None
    next_check_s: float = 0.0


def next_check(
    health: ServerHealth, now: float, settings: HealthCheckSettings
) -> tuple[CheckMode, float]:
    """Return the mode of the next check, and the seconds until it."""
    tested_s = health.tested_s
    at_s = max(health.next_check_s, now)
    due = tested_s is None or at_s >= tested_s + settings.test_every_s
    return ("test" if due or not health.registered else "ask"), at_s - now


def after_check(
    health: ServerHealth,
    mode: CheckMode,
    result: CheckResult,
    now: float,
    settings: HealthCheckSettings,
    rng: RandomLike,
) -> tuple[ServerHealth, RegistryAction]:
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
        action: RegistryAction = "stay" if health.registered or mode == "ask" else "register"
        registered = health.registered or action == "register"
        return ServerHealth(registered, 0, 0, tested_s, now + settings.every_s), action
    if not health.registered:
        return _after_failure(health, now, settings, rng), "stay"
    strikes = health.strikes + 1
    if result == "wrong" or strikes >= STRIKES:
        return _after_failure(replace(health, failures=0), now, settings, rng), "withdraw"
    # After a silent test, test again: an answer that the server is ready would prove nothing.
    tested_s = None if mode == "test" else health.tested_s
    return ServerHealth(True, strikes, 0, tested_s, now + settings.every_s), "stay"


def registration_failed(now: float, settings: HealthCheckSettings) -> ServerHealth:
    """Return the state of a server that passed its test but was not registered: a test is due."""
    return ServerHealth(next_check_s=now + settings.every_s)


def _after_failure(
    health: ServerHealth, now: float, settings: HealthCheckSettings, rng: RandomLike
) -> ServerHealth:
    wait_s = delay_s(health.failures, rng, settings.every_s, RETRY_S)
    return ServerHealth(failures=health.failures + 1, next_check_s=now + wait_s)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate limit that short bursts may exceed.

    Attributes:
        per_second: tokens per second in the long run (> 0).
        burst: largest number of tokens, reached after a pause (>= 1).
    """

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Tokens left for one peer.

    Attributes:
        tokens: number of tokens at the time `at`.
        at: seconds of the caller's clock.
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
