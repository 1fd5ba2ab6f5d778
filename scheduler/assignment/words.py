"""Why a student's set is what it is: one sentence for an operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .intake import Intake
from .state import StudentEntry


class Words:
    """The sentences about one batch of events.

    Args:
        facts: what the events said.
        notes: what the rule did to whom, in words.
    """

    def __init__(self, facts: Intake, notes: Mapping[str, list[str]]) -> None:
        self._facts = facts
        self._notes = notes
        self._asking: Counter[str] | None = None

    def about(self, name: str, old: StudentEntry | None, new: StudentEntry) -> str:
        """Why the student has what it has, and whether that is what it wants."""
        causes = self._causes(name, old, new)
        return f"{'; '.join(causes)}: {self._count(new)}"

    def _causes(self, name: str, old: StudentEntry | None, new: StudentEntry) -> list[str]:
        why, had = self._facts.why, old.teachers if old else ()
        going = (*had, *old.finishing) if old else ()
        causes = [
            why[teacher]
            for teacher in going
            if teacher in why and (teacher in self._facts.lost or teacher not in new.teachers)
        ]
        if had != new.teachers:
            causes += [why[teacher] for teacher in had if teacher in self._facts.turned]
        if old is None or (not causes and name in why):
            causes.append(why.get(name, f"student {name} wants {new.want}"))
        causes += _about_content(old, new)
        notes = self._notes.get(name, [])
        causes += notes
        told = {word.rstrip(",") for note in notes for word in note.split()}
        for teacher in new.teachers:
            if teacher not in had and teacher not in told and old is not None:
                causes.append(why.get(teacher, f"teacher {teacher} was free"))
        if not causes:
            causes.append(f"student {name} begins epoch {new.data_epoch} of its data")
        return list(dict.fromkeys(causes))[:4]

    def _count(self, entry: StudentEntry) -> str:
        has = f"{len(entry.teachers)} of {entry.want} wanted"
        if len(entry.teachers) >= entry.want:
            return has
        serving = len(self._facts.teachers.pool(entry.content_id).power)
        asking = self._asking_for(entry.content_id)
        if not serving:
            content = f" {entry.content_id}" if entry.content_id else ""
            return f"{has}, as no teacher serves{content or ''}"
        teachers = "1 teacher serves" if serving == 1 else f"{serving} teachers serve"
        students = "1 student" if asking == 1 else f"{asking} students"
        return f"{has}, as {teachers} {students}"

    def _asking_for(self, content: str) -> int:
        if self._asking is None:
            entries = self._facts.students.values()
            self._asking = Counter(entry.content_id for entry in entries if entry.need > 0)
        return self._asking[content]


def _about_content(old: StudentEntry | None, new: StudentEntry) -> list[str]:
    if old is None:
        return []
    if old.content_id != new.content_id and old.labelled:
        return [f"moves from content {old.content_id} to {new.content_id}"]
    if new.next_told and old.next_told != new.next_told:
        return [f"moves to content {new.next_told} with its next epoch"]
    if old.next_told and not new.next_told and old.content_id == new.content_id:
        return [f"stays with content {new.content_id}"]
    return []
