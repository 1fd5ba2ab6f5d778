"""What a teacher is worth and what a student needs, in one unit: the service's usual teacher.

A student needs samples per second, not heads. But measured speeds are never equal twice, and a rule
that went by them as they are would move teachers for nothing. So a speed is taken as a class
relative to the first one known, and a class is kept until the speed is clearly another.
"""

from __future__ import annotations

from math import inf

from .events import StudentReported

#: Below this, two amounts of power are the same.
EPS = 1e-6
#: A speed must leave its class by this factor to be of another one.
CLASS_NOISE = 1.35
#: Beyond this many usual teachers, or below one of so many parts, a speed is no speed.
FASTEST = 1000.0
#: The least part of a teacher that a student is taken to need.
LEAST = 0.05


def is_known(figure: float) -> bool:
    """Whether a speed or a time was measured: others may say anything."""
    return 0.0 < figure < inf


def power_class(speed: float, anchor: float, known: float | None = None) -> float:
    """A speed in usual teachers: 1, 2, 3, ... or 1/2, 1/3, ...; `known` is the class until now."""
    if not (is_known(speed) and is_known(anchor)):
        return 1.0 if known is None else known
    ratio = min(max(speed / anchor, 1 / FASTEST), FASTEST)
    if known is not None and known / CLASS_NOISE <= ratio <= known * CLASS_NOISE:
        return known
    return float(round(ratio)) if ratio >= 1 else 1.0 / round(1 / ratio)


def own_heads(report: StudentReported) -> int:
    """Teachers that a student asks for, apart from those that stand in for others."""
    return max(report.want - report.unreachable, 1)


def need_of(report: StudentReported, unit: float) -> float:
    """Power that a student needs, apart from what stands in for unreachable teachers.

    Where n is known as a ratio, the last teacher may be needed in part only: one teacher can feed
    several students whose t_t < t_s. For teachers of power `unit` it is as many as are wanted.
    """
    if report.want == 0:
        return 0.0
    n = report.needed
    heads = own_heads(report)
    if n < 1 or not (is_known(report.t_t_s) and is_known(report.t_s_s)):
        return heads * unit
    part = min(max(report.t_t_s / report.t_s_s, n - 1 + LEAST), float(n))
    return max(heads - n + part, LEAST) * unit
