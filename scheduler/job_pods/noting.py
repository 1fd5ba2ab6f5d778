"""Takes note of pods that have ended, each once; of those that are refused, or have no place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..backoff import ceiling_s
from ..job_states import Life, ending_of
from .values import Happening, JobSeen, Ledger, PodsConfig

_WHY_CHARS = 600
#: Between the end of a node and the start of another one, at most, seconds.
_LONGEST_PAUSE_S = 60.0
#: Before a job whose fewest nodes had no place asks for them again, at most, seconds.
_LONGEST_WAIT_S = 3600.0


def life_of(job: JobSeen, ledger: Ledger) -> Life:
    """What has become of a job's nodes."""
    return Life(job.wanted.retries, ledger.failures, ledger.done, ledger.hopeless)


@dataclass(frozen=True, slots=True)
class Case:
    """One job in the midst of a decision.

    Attributes:
        job: as it was seen.
        ledger: with all that has happened to its pods.
        told: of that.
        held: the cluster cannot place its fewest nodes: it waits, and takes no room.
    """

    job: JobSeen
    ledger: Ledger
    told: tuple[Happening, ...]
    held: bool

    @property
    def life(self) -> Life:
        """What has become of its nodes."""
        return life_of(self.job, self.ledger)


def case_of(job: JobSeen, now: float, config: PodsConfig) -> Case:
    """A job, once note was taken of what has happened to its pods."""
    job = replace(job, ledger=_by_our_clock(job.ledger, now, config))
    ledger, told = _note_ends(job, now, config)
    ledger, more = _note_unplaced(job, ledger, now, config)
    held = ledger.fits is not None and ledger.fits < job.wanted.least
    held = held and life_of(job, ledger).grows and not job.wanted.wrong
    if held and ledger.unplaced_since_s is None:
        ledger = replace(ledger, unplaced_since_s=now)
    elif sum(pod.runs for pod in job.staying) >= job.wanted.least:
        ledger = replace(ledger, unplaced_since_s=None)
    return Case(job, ledger, (*told, *more), held)


def _by_our_clock(ledger: Ledger, now: float, config: PodsConfig) -> Ledger:
    """Without times that lie further ahead than they can: a clock ahead of ours wrote them."""

    def within(at_s: float | None, ahead_s: float) -> float | None:
        return None if at_s is None else min(at_s, now + ahead_s)

    ledger = replace(
        ledger,
        changed_s=within(ledger.changed_s, 0.0),
        waiting_since_s=within(ledger.waiting_since_s, 0.0),
        retry_s=within(ledger.retry_s, max(_LONGEST_PAUSE_S, config.lost_pause_s)),
        unplaced_since_s=within(ledger.unplaced_since_s, 0.0),
    )
    latest_s = now + _place_again_s(ledger, now, config)
    return replace(ledger, fits_until_s=min(ledger.fits_until_s, latest_s))


def _note_ends(job: JobSeen, now: float, config: PodsConfig) -> tuple[Ledger, list[Happening]]:
    pods = {pod.number: pod for pod in job.pods}
    told: list[Happening] = []
    # Numbers of pods that are gone are forgotten: a number never comes again.
    ledger = replace(job.ledger, counted=frozenset(n for n in job.ledger.counted if n in pods))
    if ledger.retry_s is not None and now >= ledger.retry_s:
        ledger = replace(ledger, retry_s=None)
    for number in sorted(pods):
        pod = pods[number]
        if not pod.ended or number in ledger.counted:
            continue
        ledger = replace(ledger, counted=ledger.counted | {number})
        if pod.code is None:
            if not pod.going:
                why = f"node {number} was ended: {pod.said or 'nobody says why'}"[:_WHY_CHARS]
                told.append(Happening("NodeLost", why))
                ledger = replace(ledger, retry_s=_later(ledger, now + _pause_s(job, config)))
                ledger = ledger if life_of(job, ledger).broken else replace(ledger, why=why)
            continue
        ending = ending_of(pod.code, pod.going, job.wanted.trains)
        life = life_of(job, ledger).after(ending, pausing=ledger.retry_s is not None)
        ledger = replace(ledger, failures=life.failures, done=life.done, hopeless=life.hopeless)
        if ending in ("failed", "hopeless"):
            last = f"its last lines: {pod.said}" if pod.said else "it said nothing"
            why = f"node {number} ended with exit code {pod.code}; {last}"[:_WHY_CHARS]
            ledger = replace(ledger, why=why, retry_s=_later(ledger, now + life.delay_s))
            told.append(Happening("NodeFailed", why, warns=True))
        elif ending == "done":
            told.append(Happening("NodeDone", f"node {number} has ended well"))
    return ledger, told


def _pause_s(job: JobSeen, config: PodsConfig) -> float:
    """Before another node is started for one that the cluster ended.

    Longer where those before it were ended too, and none has come to run since: a machine that
    takes pods and refuses them would be sent one after another.
    """
    newest = max((pod.number for pod in job.staying if pod.runs), default=0)
    before = sum(
        pod.ended and pod.code is None and not pod.going and pod.number > newest
        for pod in job.pods
        if pod.number in job.ledger.counted
    )
    pause_s = config.lost_pause_s
    return ceiling_s(before, pause_s, max(_LONGEST_PAUSE_S, pause_s))


def _later(ledger: Ledger, at_s: float) -> float:
    return at_s if ledger.retry_s is None else max(ledger.retry_s, at_s)


def refused(
    ledger: Ledger, nodes: int, why: str, now: float, config: PodsConfig, *, never: bool
) -> Ledger:
    """The ledger of a job of which the cluster has refused a pod.

    Args:
        ledger: as it was kept before.
        nodes: that the job has.
        why: it was refused.
        now: seconds.
        config: of all jobs.
        never: such a pod is never taken: it counts as a node that failed. Else it has no place, so
            that its room is others' until it is asked for again.
    """
    ledger = replace(ledger, why=why[:_WHY_CHARS])
    if never:
        life = Life(failures=ledger.failures).after("failed")
        return replace(ledger, failures=life.failures, retry_s=_later(ledger, now + life.delay_s))
    return replace(ledger, fits=nodes, fits_until_s=now + _place_again_s(ledger, now, config))


def _place_again_s(ledger: Ledger, now: float, config: PodsConfig) -> float:
    """How long a job does with what could be placed before it asks for more."""
    if ledger.unplaced_since_s is None:
        return config.place_again_s
    return max(config.place_again_s, min(now - ledger.unplaced_since_s, _LONGEST_WAIT_S))


def _note_unplaced(
    job: JobSeen, ledger: Ledger, now: float, config: PodsConfig
) -> tuple[Ledger, list[Happening]]:
    """After a patience a job has to do with what could be placed; later more is asked for again."""
    if not life_of(job, ledger).grows or job.wanted.wrong:
        return ledger, []  # what runs, or waits, of a wrong spec is left alone
    unplaced = [pod for pod in job.staying if pod.unplaced_since_s is not None]
    if not any(now - (pod.unplaced_since_s or 0.0) >= config.place_within_s for pod in unplaced):
        if ledger.fits is not None and now >= ledger.fits_until_s:
            ledger = replace(ledger, fits=None, fits_until_s=0.0)
        return ledger, []
    fits = len(job.staying) - len(unplaced)
    why = f"node {unplaced[0].number} has no place: {unplaced[0].said}"[:_WHY_CHARS]
    again_s = _place_again_s(ledger, now, config)
    told = Happening(
        "Unplaceable", f"{why}; it does with {fits} nodes for {again_s:.0f} s", warns=True
    )
    return replace(ledger, fits=fits, fits_until_s=now + again_s, why=why), [told]
