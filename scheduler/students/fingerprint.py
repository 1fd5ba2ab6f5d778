"""The job fingerprint: settings that all nodes of a training share, and who is refused for others.

A fingerprint maps each of `FIELDS` to a JSON value. It is taken from a node's own settings and job
file before the world is known, so before `on_scale` changes anything. A field that only one side
has, as after an upgrade, is not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Fingerprint = Mapping[str, Any]

#: In the order in which differences are reported.
FIELDS: Final = (
    "job_file",
    "modules",
    "seed",
    "rows",
    "sampler",
    "total_batch",
    "sharding",
    "precision",
    "optimizer",
    "parameter_groups",
    "lr_policy",
    "loss",
    "service",
    "feeds",
    "epochs",
    "steps",
)
#: A resumed training may be longer or shorter than it was meant to be.
LENGTH: Final = ("epochs", "steps")
#: These decide which sample a position of an epoch stands for.
ORDER: Final = ("seed", "rows", "sampler")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two fingerprints differ.

    Attributes:
        field: one of `FIELDS`.
        before: value of the job, or of the checkpoint.
        now: value of the node that is compared with it.
    """

    field: str
    before: Any
    now: Any

    def in_words(self, there: str) -> str:
        """As in "seed is 7 here and 0 in the job"; of a mapping only the entries that differ."""
        if isinstance(self.before, Mapping) and isinstance(self.now, Mapping):
            parts = [
                Difference(f"{self.field}.{name}", self.before.get(name), self.now.get(name))
                for name in sorted({*self.before, *self.now})
                if self.before.get(name) != self.now.get(name)
            ]
            return "; ".join(part.in_words(there) for part in parts)
        return f"{self.field} is {self.now!r} here and {self.before!r} {there}"

    def to_json(self, step: int) -> dict[str, Any]:
        """For the manifest of a checkpoint: the change was made at `step`."""
        return {"step": step, "field": self.field, "before": self.before, "after": self.now}


def differences(
    expected: Fingerprint, own: Fingerprint, ignored: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Fields that both have with unequal values, in the order of `FIELDS`.

    Args:
        expected: of the job, or of a checkpoint; empty: not known, so nothing differs.
        own: of the node that is compared with it; empty: likewise.
        ignored: fields that may differ.
    """
    return tuple(
        Difference(name, expected[name], own[name])
        for name in FIELDS
        if name in expected and name in own and name not in ignored
        if expected[name] != own[name]
    )


def since_checkpoint(saved: Fingerprint, own: Fingerprint) -> tuple[Difference, ...]:
    """What has changed since a checkpoint with this fingerprint was written."""
    return differences(saved, own, LENGTH)


def moves_positions(changes: Iterable[Difference]) -> bool:
    """Whether the positions of an epoch stand for other samples after these changes."""
    return any(change.field in ORDER for change in changes)


def in_words(changes: Sequence[Difference], there: str) -> str:
    """Each difference with both values."""
    return "; ".join(change.in_words(there) for change in changes)
