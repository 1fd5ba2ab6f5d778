"""Sweeps of `edl plan --what-if KEY=A..B`: plans for several values of one quantity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ...runtime.errors import UsageError
from ...scheduler.cluster import Cluster, DeviceKind, DeviceLink, DeviceRate, Distillation
from ...scheduler.planner import MeshPlan, plan
from ...scheduler.units import Number
from ...scheduler.verdicts import Aim
from ..files.yaml_tree import describe_number, parse_number, unknown_key

#: Default number of points of a range, and the limit.
POINTS, MAX_POINTS = 9, 64
#: Ratio of the bounds above which the points of a range are in geometric progression.
WIDE_RANGE = 20.0
_RANGE = re.compile(r"(?P<first>[^=]+?)\.\.(?P<last>[^=/]+|[^=]+/s)(?:/(?P<step>[\d.eE+-]+))?")
_SPEEDS = ("samples_per_s", "seconds_per_sample")
_LINK = tuple(key.name for key in fields(DeviceLink))


@dataclass(frozen=True, slots=True)
class Sweep:
    """A quantity and its values.

    Attributes:
        key: "teachers", or a numeric key of the job or of a kind of device ("p4.price_per_hour").
        values: values in the unit of the key.
    """

    key: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The plan for one value of a sweep.

    Attributes:
        value: value of the key.
        plan: the plan; None: there is none.
        why_not: reason why there is no plan.
    """

    value: float
    plan: MeshPlan | None
    why_not: str = ""


def parse_sweep(text: str, cluster: Cluster, job: Distillation) -> Sweep:
    """Parse `KEY=A..B` or `KEY=A..B/STEP`.

    Raises:
        UsageError: the form is wrong, the key is unknown, or a value is invalid.
    """
    key, _, given = text.partition("=")
    key = key.strip()
    match = _RANGE.fullmatch(given.strip())
    if match is None:
        raise UsageError(
            f"--what-if {text}: expects KEY=A..B or KEY=A..B/STEP, such as teachers=40..56 or"
            " p4.bandwidth_bytes_per_s=1 Gbit/s..10 Gbit/s"
        )
    rule = _variable_keys(cluster, job).get(key)
    if rule is None:
        raise UsageError(f"--what-if {key}: {unknown_key(key, _variable_keys(cluster, job))}")
    integer, number = rule
    first, last = (_bound(text, match[name].strip(), integer, number) for name in ("first", "last"))
    step = None if match["step"] is None else _bound(text, match["step"], integer, Number(above=0))
    if last < first:
        raise UsageError(f"--what-if {text}: the range is empty: write the lower bound first")
    return Sweep(key, tuple(_values(text, first, last, step, integer)))


def plan_points(
    sweep: Sweep, cluster: Cluster, job: Distillation, aim: Aim
) -> Iterator[SweepPoint]:
    """Make the plan for each value, one after another."""
    for value in sweep.values:
        try:
            if sweep.key == "teachers":
                planned = plan(cluster, job, aim, teachers=int(value))
            else:
                planned = plan(*_changed(sweep.key, value, cluster, job), aim)
        except ValueError as error:
            yield SweepPoint(value, None, str(error))
        else:
            yield SweepPoint(value, planned)


def _bound(text: str, written: str, integer: bool, rule: Number) -> float:
    value = parse_number(written, rule)
    if value is None or not rule.takes(value) or (integer and not value.is_integer()):
        kind = "a whole number" if integer else "a number"
        raise UsageError(
            f"--what-if {text}: expects {describe_number(kind, rule)}, got {written!r}"
        )
    return value


def _values(
    text: str, first: float, last: float, step: float | None, integer: bool
) -> Iterator[float]:
    if step is None and integer and last - first < MAX_POINTS:
        step = 1.0
    if step is not None:
        count = int((last - first) / step + 1e-9) + 1
        if count > MAX_POINTS:
            raise UsageError(f"--what-if {text}: {count} values; at most {MAX_POINTS}")
        yield from (first + index * step for index in range(count))
        return
    wide = first > 0 and last / first > WIDE_RANGE
    seen = set()
    for index in range(POINTS):
        part = index / (POINTS - 1)
        value = first * (last / first) ** part if wide else first + part * (last - first)
        value = float(round(value)) if integer else value
        if value not in seen:
            seen.add(value)
            yield value


def _variable_keys(cluster: Cluster, job: Distillation) -> dict[str, tuple[bool, Number]]:
    """Return the keys of sweeps: whether the value is an integer, and its valid numbers."""
    found = {"teachers": (True, Number(at_least=1)), "batch": (True, Number(at_least=1))}
    found.update(_numbers(Distillation, ""))
    for kind in cluster.devices:
        found.update(_numbers(DeviceKind, f"{kind.name}."))
        found.update(_numbers(DeviceLink, f"{kind.name}."))
        for role in ("student", "teacher"):
            if kind.name in getattr(job, role):
                found.update(_numbers(DeviceRate, f"{kind.name}.{role}."))
    return found


def _numbers(kind: type[Any], prefix: str) -> dict[str, tuple[bool, Number]]:
    assert is_dataclass(kind)
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for key in fields(kind):
        for hint in (hints[key.name], *get_args(hints[key.name])):
            if get_origin(hint) is Annotated and get_args(hint)[0] in (int, float):
                rule = next(mark for mark in get_args(hint) if isinstance(mark, Number))
                found[prefix + key.name] = (get_args(hint)[0] is int, rule)
    found.pop(f"{prefix}batch", None)
    return found


def _changed(
    key: str, value: float, cluster: Cluster, job: Distillation
) -> tuple[Cluster, Distillation]:
    """Return cluster and job with another value of a key of `_variable_keys`."""
    if key == "batch":
        return cluster, replace(job, batch=(int(value),))
    names = [kind.name for kind in cluster.devices if key.startswith(f"{kind.name}.")]
    if not names:
        return cluster, replace(job, **_typed(Distillation, key, value))
    name = max(names, key=len)
    role, _, field = key[len(name) + 1 :].partition(".")
    if not field:
        devices = (_device(kind, name, role, value) for kind in cluster.devices)
        return replace(cluster, devices=tuple(devices)), job
    changed = _typed(DeviceRate, field, value)
    if field in _SPEEDS:  # only one of them may be set
        changed = {**dict.fromkeys(_SPEEDS), **changed}
    rates: dict[str, DeviceRate] = dict(getattr(job, role))
    rates[name] = replace(rates[name], **changed)
    return cluster, (
        replace(job, student=rates) if role == "student" else replace(job, teacher=rates)
    )


def _device(kind: DeviceKind, name: str, key: str, value: float) -> DeviceKind:
    if kind.name != name:
        return kind
    if key in _LINK:
        return replace(kind, link=replace(kind.link, **_typed(DeviceLink, key, value)))
    return replace(kind, **_typed(DeviceKind, key, value))


def _typed(kind: type[Any], key: str, value: float) -> dict[str, Any]:
    return {key: int(value) if _numbers(kind, "")[key][0] else value}
