"""Scalar values of YAML files: text, numbers with units, booleans."""

from __future__ import annotations

import re

import yaml

from ...scheduler.units import EXAMPLES, LARGEST, SPELLINGS, Number, sensible
from .yaml_tree import FileLocation, describe_node

_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?[0-9](_?[0-9])*")
_REAL = re.compile(r"[-+]?([0-9](_?[0-9])*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WITH_UNIT = re.compile(rf"({_REAL.pattern})\s*([^\d\s].*)")
ANY = Number()


def text(node: yaml.Node, location: FileLocation) -> str:
    """Return a text. A text that YAML takes for a number or a date must be in quotes."""
    if not isinstance(node, yaml.ScalarNode) or node.tag == f"{_TAG}null":
        location.fail(node, f"expects text, got {describe_node(node)}")
    if node.tag != f"{_TAG}str":
        location.fail(
            node, f"expects text, got {describe_node(node)}: put it in quotes if it is meant so"
        )
    return str(node.value)


def boolean(node: yaml.Node, location: FileLocation) -> bool:
    """Return a boolean."""
    if node.tag != f"{_TAG}bool" or not isinstance(node, yaml.ScalarNode):
        location.fail(node, f"expects true or false, got {describe_node(node)}")
    return str(node.value).lower() in ("true", "yes", "on")


def integer(node: yaml.Node, location: FileLocation, rule: Number = ANY) -> int:
    """Return an integer within the bounds, also after conversion from a unit."""
    written = _written(node)
    real = None if written is None else parse_number(written, rule)
    if written is not None and _WHOLE.fullmatch(written) and len(written) < 30:
        value: int | None = int(written)  # conversion through a float would lose digits
    else:
        value = int(real) if real is not None and real.is_integer() else None
    if value is None or not rule.takes(value):
        location.fail(node, _complaint("a whole number", rule, real, node))
    return value


def number(node: yaml.Node, location: FileLocation, rule: Number = ANY) -> float:
    """Return a finite number within the bounds, with or without a unit."""
    written = _written(node)
    real = None if written is None else parse_number(written, rule)
    if real is None or not rule.takes(real):
        location.fail(node, _complaint("a number", rule, real, node))
    return real


def _complaint(kind: str, rule: Number, value: float | None, node: yaml.Node) -> str:
    far = value is not None and not sensible(value)
    most = f"; no figure here is beyond {LARGEST:g}, or nearer to 0 than {1 / LARGEST:g}"
    return f"expects {describe_number(kind, rule)}, got {describe_node(node)}{most if far else ''}"


def _written(node: yaml.Node) -> str | None:
    """Return the text of a scalar; None: the node is no scalar, or is a number in quotes."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    quoted = node.style in ("'", '"')
    return None if quoted and _REAL.fullmatch(node.value) else str(node.value).strip()


def parse_number(written: str, rule: Number) -> float | None:
    """Return the number in a text, with or without a unit of `rule`; None: it is no number."""
    if _REAL.fullmatch(written):
        return float(written)
    parts = _WITH_UNIT.fullmatch(written)
    if parts is None:
        return None
    factor = SPELLINGS.get(rule.unit, {}).get(parts[len(parts.groups())].strip())
    return None if factor is None else float(parts[1]) * factor


def describe_number(kind: str, rule: Number) -> str:
    """Describe the expected number: its kind, bounds and units."""
    words = f"{kind}{rule.bounds()}"
    if not rule.unit:
        return words
    units, example = SPELLINGS[rule.unit], f"`{EXAMPLES[rule.unit]}`"
    if len(units) == 1:
        return f"{words}, alone or as {example}"
    return f"{words}, in {rule.unit} or as {example} ({', '.join(units)})"
