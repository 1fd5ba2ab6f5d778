"""How the plan of a service's content moves on: declared once, then by upgrades that end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ..scheduler import assignment as rule
from .registry import LogEntry, Plan


def planned(plan: Plan) -> rule.ContentPlanned:
    """The plan as the rule is told it."""
    at: rule.When = "now" if plan.at == "now" else "epoch"
    return rule.ContentPlanned(plan.content_id, plan.next_content_id, at)


def next_plan(
    plan: Plan, state: rule.AssignmentState, served: Iterable[str]
) -> tuple[Plan, LogEntry] | None:
    """What the plan becomes now, and the log entry that says so; None: it stays.

    Args:
        plan: as it stands.
        state: of the rule, which has been told this plan.
        served: what each teacher that may be assigned serves.
    """
    if plan.next_content_id:
        if not rule.plan_is_complete(state):
            return None
        done = Plan(plan.next_content_id, version=plan.version)
        text = f"upgrade done: all students are on {done.content_id}, not {plan.content_id}"
        return done, LogEntry("upgrade", done.content_id, text)
    if plan.content_id:
        return None
    found = Counter(content for content in served if content)
    if not found:
        return None
    content = min(found, key=lambda name: (-found[name], name))
    text = f"declared: the first teachers serve {content}"
    return replace(plan, content_id=content), LogEntry("upgrade", content, text)


def announced(before: Plan, after: Plan) -> LogEntry | None:
    """What the log says of a plan that somebody else has changed."""
    if after.version == before.version:
        return None
    if after.next_content_id:
        when = "at once" if after.at == "now" else "as each begins its next epoch"
        text = f"upgrade asked for: students move to {after.next_content_id} {when}"
        return LogEntry("upgrade", after.next_content_id, text)
    if after.content_id != before.content_id or before.next_content_id:
        text = f"declared content is {after.content_id}; no upgrade runs"
        return LogEntry("upgrade", after.content_id, text)
    return None
