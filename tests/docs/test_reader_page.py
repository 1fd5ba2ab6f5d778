"""docs/reader.md tells of every argument with its default, every callback, and real metrics."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from edl.distill_reader import Callback, DistilReader

PLACE = Path(__file__).resolve().parents[2] / "docs"
PAGE = (PLACE / "reader.md").read_text()
ARGUMENTS = {
    name: one.default
    for name, one in inspect.signature(DistilReader).parameters.items()
    if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
}


def shown(default: Any) -> str:
    """How the table writes a default."""
    if default is inspect.Parameter.empty:
        return ""
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, int | float) and not isinstance(default, bool):
        return f"{default >> 20} MiB" if default >= 1 << 20 else f"{default:g}"  # type: ignore[operator]
    if type(default).__module__.startswith("edl.") and default == type(default)():
        return f"{type(default).__name__}()"  # a policy with all its own defaults
    return repr(default)


def table() -> dict[str, str]:
    _, _, rows = PAGE.partition("## All arguments")
    found = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|.*\|$", rows, re.MULTILINE)
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_argument_stands_in_the_table_with_its_default() -> None:
    assert table() == {name: shown(default) for name, default in ARGUMENTS.items()}
    assert [*table()] == [*ARGUMENTS], "in the order of the constructor"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_is_described_in_the_docstring(name: str) -> None:
    assert re.search(rf"^    {name}: ", inspect.getdoc(DistilReader) or "", re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in vars(Callback) if name.startswith("on_")])
def test_every_callback_is_listed_with_its_arguments(name: str) -> None:
    arguments = [*inspect.signature(getattr(Callback, name)).parameters][1:]
    (listed,) = re.findall(rf"^\|.*`{name}\(([^)]*)\)`.*\|", PAGE, re.MULTILINE)
    assert len(listed.split(", ")) == len(arguments)


def test_the_metrics_that_are_named_exist() -> None:
    _, _, section = PAGE.partition("\n## Metrics\n")
    named = re.findall(r"`([a-z_]+)`", section.partition("\n## ")[0].partition("|---|---|")[2])
    everything = (PLACE / "dashboard.md").read_text()
    assert len(named) > 20
    assert [name for name in named if f"`edl_reader_{name}`" not in everything] == []
