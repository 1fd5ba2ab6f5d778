"""Fingerprints of a training, which must be equal on all nodes, and their differences.

A fingerprint maps each of `FIELDS` to a JSON value. A node computes it from its settings and job
file before the world is known, so before the job's `on_scale` changes anything. A field that only
one fingerprint has, as after an upgrade, is not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Fingerprint = Mapping[str, Any]

#: Fields of a fingerprint, in the order of reports.
FIELDS: Final = (
    "job_file",
    "modules",
    "seed",
    "rows",
    "sampler",
    "total_batch",
    "sharding",
    "shard_rows",
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
#: Fields that a resumed training may change: its length.
LENGTH: Final = ("epochs", "steps")
#: Fields that decide which sample is at a position of an epoch.
ORDER: Final = ("seed", "rows", "sampler")

_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A field with different values in two fingerprints.

    Attributes:
        field: one of `FIELDS`.
        before: value of the job, or of the checkpoint.
        now: value of the node that is compared with it.
    """

    field: str
    before: Any
    now: Any

    def entries(self) -> list[Difference]:
        """Return the entries that differ, as `optimizer.lr`, of mappings; else this difference."""
        if not (isinstance(self.before, Mapping) and isinstance(self.now, Mapping)):
            return [self]
        return [
            entry
            for name in sorted({*self.before, *self.now})
            if (now := self.now.get(name, _MISSING)) != self.before.get(name, _MISSING)
            for entry in Difference(
                f"{self.field}.{name}", self.before.get(name, _MISSING), now
            ).entries()
        ]

    def in_words(self, where: str) -> str:
        """Return text such as "seed is 7 here and 0 in the job".

        Of mappings, only the entries that differ are named.

        Args:
            where: text for the origin of `before`, such as "in the job".
        """
        return "; ".join(
            f"{entry.field} is {_shown(entry.now)} here and {_shown(entry.before)} {where}"
            for entry in self.entries()
        )

    def to_json(self, step: int) -> dict[str, Any]:
        """Return an entry for the manifest of a checkpoint: the change was made at `step`."""
        return {"step": step, "field": self.field, "before": self.before, "after": self.now}


def differences(
    expected: Fingerprint, own: Fingerprint, ignored: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Return the fields that both fingerprints have, but with different values.

    They are in the order of `FIELDS`.

    Args:
        expected: fingerprint of the job, or of a checkpoint; empty: unknown, so nothing differs.
        own: fingerprint of the node that is compared with it; empty: unknown.
        ignored: fields that may differ.
    """
    return tuple(
        Difference(name, expected[name], own[name])
        for name in FIELDS
        if name in expected and name in own and name not in ignored
        if expected[name] != own[name]
    )


def since_checkpoint(saved: Fingerprint, own: Fingerprint) -> tuple[Difference, ...]:
    """Return what, apart from `LENGTH`, has changed since the checkpoint of `saved` was written."""
    return differences(saved, own, LENGTH)


def data_order(own: Fingerprint, saved: Fingerprint) -> dict[str, Any]:
    """Return what decides the order of a generation's data: `ORDER` and "restarts_epoch".

    "restarts_epoch" is true if the epoch of the checkpoint starts again from its beginning, because
    its positions now stand for other samples.

    Args:
        own: fingerprint of the generation.
        saved: fingerprint of the checkpoint that it starts from; empty: none, or unknown.
    """
    order = {name: own[name] for name in ORDER if name in own}
    restarts = any(change.field in ORDER for change in since_checkpoint(saved, own))
    return {**order, "restarts_epoch": restarts}


def optimizer_changes(own: Fingerprint, saved: Fingerprint) -> tuple[str, ...]:
    """Return the names of the optimizer's settings that have changed, as `lr` or `schedule.gamma`.

    Settings of groups of parameters have no other names than those of the optimizer.

    Args:
        own: fingerprint of the generation.
        saved: fingerprint of the checkpoint that it starts from; empty: none, or unknown.
    """
    names: set[str] = set()
    for before, now in zip(_optimizer_and_groups(saved), _optimizer_and_groups(own), strict=False):
        names |= {entry.field.removeprefix(".") for entry in Difference("", before, now).entries()}
    return tuple(sorted(names))


def _optimizer_and_groups(fingerprint: Fingerprint) -> list[Mapping[str, Any]]:
    groups = fingerprint.get("parameter_groups", ())
    return [fingerprint["optimizer"], *groups] if "optimizer" in fingerprint else []


def _shown(value: Any) -> str:
    return "missing" if value is _MISSING else repr(value)


def differences_in_words(changes: Sequence[Difference], where: str) -> str:
    """Return each difference with both values, as text; `where`: see `Difference.in_words`."""
    return "; ".join(change.in_words(where) for change in changes)
