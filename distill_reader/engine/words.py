"""What the engine says in words: what the stream waits for, what became of a batch and why."""

from __future__ import annotations

import time

from .member import Member


def waiting_for(member: Member) -> str:
    """What the stream waits for: "0 of 3 teachers live, teacher a was lost: its lease ran out".

    Returns:
        One clause; empty while the training loop does not wait.
    """
    core, ledger, links = member.core, member.ledger, member.core.teachers.links
    if core.waiting_since is None:
        return ""
    if core.decision.state == "source_wait":
        return "the source has not yielded the next batch"
    known = len(ledger.withheld)
    looked_up = known + (0 if member.shelf is None else len(member.shelf))
    if looked_up and ledger.unlabelled == known:
        return f"{looked_up} batches wait for the label store, or the first answer"
    if (since := member.cut_off_since) is not None:
        at = time.strftime("%H:%M:%S", time.localtime(since))
        clauses = [f"{len(links)} of {len(links)} teachers unreachable since {at}"]
    elif ledger.usable == 0:
        clauses = [f"0 of {len(links)} teachers live"]
    else:
        return f"teachers at work: {ledger.usable}, batches in flight: {ledger.in_flight}"
    if awaited := member.core.contents.switch.awaited:
        clauses.append(f"waiting for a teacher of content {awaited}")
    trouble = member.roster.why() or links.last_trouble
    return ", ".join([*clauses, *filter(None, [trouble])])


def story(member: Member, batch: int, now: float) -> list[str]:
    """Why a batch went where it went: each event that concerns it, and what was done because of it.

    Args:
        member: whose core remembers it.
        batch: its number.
        now: by the engine's clock.

    Returns:
        Lines in the order of time: "0.213 s ago, event 814 of resnet: AnswerCame(...)".
    """
    lines = []
    for step in member.core.story(batch):
        lines.append(
            f"{now - step.at:.3f} s ago, event {step.stimulus} of {member.config.service}:"
            f" {step.event}"
        )
        lines += [f"  so {instruction}" for instruction in step.instructions]
    return lines


def poison(number: int, reasons: tuple[str, ...]) -> str:
    """Why a batch will never be labelled."""
    return (
        f"batch {number} will never be labelled: {'; '.join(reasons)} (so many refusals are enough"
        " to blame the batch, or there is nobody else to ask)"
    )
