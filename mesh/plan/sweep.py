"""Sweeps of `edl plan --what-if KEY=A..B`: plans for several values of one quantity."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ...runtime.errors import UsageError
from ...scheduler.cluster import Cluster, DeviceKind, DeviceLink, DeviceRate, Distillation, Role
from ...scheduler.planner import MeshPlan, plan
from ...scheduler.units import Number
from ...scheduler.verdicts import Aim
from ..files.yaml_tree import describe_number, parse_number, unknown_key

#: Number of points of a range without a step, and the limit of every range. A range of at most
#: `MAX_POINTS` whole numbers, without a step, has all of them.
POINTS, MAX_POINTS = 9, 64
#: Ratio of the bounds above which the points of a range are in geometric progression.
WIDE_RANGE = 20.0
_RANGE = re.compile(r"(?P<first>[^=]+?)\.\.(?P<last>[^=/]+|[^=]+/s)(?:/(?P<step>[\d.eE+-]+))?")
_SPEEDS = ("samples_per_s", "seconds_per_sample")


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
    key, _, range_text = text.partition("=")
    key = key.strip()
    match = _RANGE.fullmatch(range_text.strip())
    if match is None:
        raise UsageError(
            f"--what-if {text}: expects KEY=A..B or KEY=A..B/STEP, such as teachers=40..56 or"
            " p4.bandwidth_bytes_per_s=1 Gbit/s..10 Gbit/s"
        )
    variables = _variables(cluster, job)
    if key not in variables:
        raise UsageError(f"--what-if {key}: {unknown_key(key, variables)}")
    integer, rule, _ = variables[key]
    first, last = (
        _parse_bound(text, match[name].strip(), integer, rule) for name in ("first", "last")
    )
    step = (
        None
        if match["step"] is None
        else _parse_bound(text, match["step"], integer, Number(above=0))
    )
    if last < first:
        raise UsageError(f"--what-if {text}: the range is empty: write the lower bound first")
    return Sweep(key, tuple(_values(text, first, last, step, integer)))


def plan_points(
    sweep: Sweep, cluster: Cluster, job: Distillation, aim: Aim, teachers: int | None = None
) -> Iterator[SweepPoint]:
    """Make the plan for each value, one after another, with `teachers` unless these vary."""
    integer, _, change = _variables(cluster, job)[sweep.key]
    for value in sweep.values:
        number = int(value) if integer else value
        count = int(value) if sweep.key == "teachers" else teachers
        try:
            planned = plan(*change(number), aim, count)
        except ValueError as error:
            yield SweepPoint(value, None, str(error))
        else:
            yield SweepPoint(value, planned)


def _parse_bound(text: str, written: str, integer: bool, rule: Number) -> float:
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
        fraction = index / (POINTS - 1)
        value = first * (last / first) ** fraction if wide else first + fraction * (last - first)
        value = float(round(value)) if integer else value
        if value not in seen:
            seen.add(value)
            yield value


#: A function that returns cluster and job with another value of one quantity.
_Change = Callable[[Any], tuple[Cluster, Distillation]]


def _variables(cluster: Cluster, job: Distillation) -> dict[str, tuple[bool, Number, _Change]]:
    """Return for each key: whether the value is an integer, its valid numbers, its `_Change`."""

    def with_device(kind: DeviceKind, new: DeviceKind) -> tuple[Cluster, Distillation]:
        devices = tuple(new if one is kind else one for one in cluster.devices)
        return replace(cluster, devices=devices), job

    def with_link(kind: DeviceKind, new: DeviceLink) -> tuple[Cluster, Distillation]:
        return with_device(kind, replace(kind, link=new))

    def with_rate(role: Role, kind: str, new: DeviceRate) -> tuple[Cluster, Distillation]:
        rates: dict[str, Any] = {role: {**getattr(job, role), kind: new}}
        return cluster, replace(job, **rates)

    count = Number(at_least=1)
    variables: dict[str, tuple[bool, Number, _Change]] = {
        "teachers": (True, count, lambda value: (cluster, job)),  # an argument of `plan`
        **_numbers("", job, lambda new: (cluster, new)),
        "batch": (True, count, lambda value: (cluster, replace(job, batch=(value,)))),
    }
    for kind in cluster.devices:
        variables |= _numbers(f"{kind.name}.", kind, partial(with_device, kind))
        variables |= _numbers(f"{kind.name}.", kind.link, partial(with_link, kind))
        for role in get_args(Role):
            if rate := getattr(job, role).get(kind.name):
                use = partial(with_rate, role, kind.name)
                variables |= _numbers(f"{kind.name}.{role}.", rate, use)
    return variables


def _numbers(prefix: str, owner: Any, use: _Change) -> dict[str, tuple[bool, Number, _Change]]:
    """Return the numeric fields of a dataclass in the form of `_variables`.

    Args:
        prefix: prefix of their keys.
        owner: the dataclass.
        use: returns cluster and job with a changed copy of `owner`.
    """

    def change(name: str, value: float) -> tuple[Cluster, Distillation]:
        # Only one of the speeds may be set.
        others = dict.fromkeys(_SPEEDS) if name in _SPEEDS else {}
        return use(replace(owner, **{**others, name: value}))

    hints = get_type_hints(type(owner), include_extras=True)
    numbers: dict[str, tuple[bool, Number, _Change]] = {}
    for key in fields(owner):
        for hint in (hints[key.name], *get_args(hints[key.name])):
            if get_origin(hint) is Annotated and get_args(hint)[0] in (int, float):
                rule = next(mark for mark in get_args(hint) if isinstance(mark, Number))
                integer = get_args(hint)[0] is int
                numbers[prefix + key.name] = (integer, rule, partial(change, key.name))
    return numbers
