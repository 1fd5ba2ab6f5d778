"""The content plan of a service: its next state, and its events for the assignment rule. No I/O.

A plan begins with the most frequent content of the students, or, if no student has labels yet, of
the teachers. It advances when an upgrade is complete.
"""

from __future__ import annotations

from dataclasses import replace

from ...scheduler import assignment as rule
from ..registry import LogEntry, StoredContentPlan


def plan_event(plan: StoredContentPlan) -> rule.ContentPlanned:
    """Return the plan as an event of the rule."""
    at: rule.When = "now" if plan.at == "now" else "epoch"
    return rule.ContentPlanned(plan.content_id, plan.next_content_id, at)


def is_lost(stored: StoredContentPlan, known: StoredContentPlan) -> bool:
    """Return whether the registry lost the plan that we know: it has none, or a stale one.

    A stale plan, from a replica, has a smaller version and an earlier time. The time alone proves
    nothing: after a failover, the clock of the new Redis may be behind that of the former one.

    Args:
        stored: the plan in the registry.
        known: the plan that we know.
    """
    if _is_empty(known):
        return False
    older = stored.version < known.version and stored.since_ms < known.since_ms
    return older or _is_empty(stored)


def next_plan(
    stored: StoredContentPlan,
    known: StoredContentPlan,
    state: rule.AssignmentState,
    recovering: bool,
) -> tuple[StoredContentPlan, LogEntry] | None:
    """Return the next plan and its log entry; None: the current plan stays.

    Args:
        stored: the plan in the registry.
        known: the plan that the rule follows: `stored`, unless the registry has lost the plan.
        state: state of the rule.
        recovering: members may still return, so nothing can be concluded about all of them.
    """
    if is_lost(stored, known):
        plan = replace(known, version=stored.version)
        content = known.next_content_id or known.content_id
        kind = "upgrade goes on" if known.next_content_id else "declared"
        return plan, LogEntry(
            "upgrade", content, f"{kind}: {_describe(known)}, as it was before Redis lost the plan"
        )
    if recovering:
        return None
    if stored.next_content_id:
        if not rule.plan_is_complete(state):
            return None
        done = StoredContentPlan(stored.next_content_id, version=stored.version)
        former = f" instead of {stored.content_id}" if stored.content_id else ""
        text = f"upgrade done: all students are on {done.content_id}{former}"
        return done, LogEntry("upgrade", done.content_id, text)
    if stored.content_id:
        return None
    content, students, teachers = rule.prevailing_content(state)
    if not content:
        return None
    if students:
        text = f"declared: {students} of {len(state.students)} students are on {content}"
    else:
        text = f"declared: {teachers} of {len(state.teachers)} teachers serve {content}"
    return replace(stored, content_id=content), LogEntry("upgrade", content, text)


def _is_empty(plan: StoredContentPlan) -> bool:
    return not (plan.content_id or plan.next_content_id)


def _describe(plan: StoredContentPlan) -> str:
    if not plan.next_content_id:
        return plan.content_id
    when = "at once" if plan.at == "now" else "as each begins its next epoch"
    return f"students move to {plan.next_content_id} {when}"


def change_entry(before: StoredContentPlan, after: StoredContentPlan) -> LogEntry | None:
    """Return the log entry for a user's change of the plan; None: nothing to log."""
    if replace(after, version=before.version, since_ms=before.since_ms) == before:
        return None
    if after.next_content_id:
        text = f"upgrade asked for: {_describe(after)}"
        return LogEntry("upgrade", after.next_content_id, text)
    if after.content_id != before.content_id or before.next_content_id:
        text = f"declared content is {after.content_id}; no upgrade runs"
        return LogEntry("upgrade", after.content_id, text)
    return None
