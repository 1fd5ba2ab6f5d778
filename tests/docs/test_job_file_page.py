"""docs/job-file.md: its example runs, and it tells of every argument with its default."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from edl.student import Distill, Hint, load_job
from edl.student.job.assembly import assemble
from edl.student.job.rehearsal import rehearse
from edl.student.job.spec import NEEDED, OPTIONAL
from edl.teacher.backends.paddle_runtime import import_paddle

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "job-file.md").read_text()
EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]


def shown(one: dataclasses.Field[Any]) -> str:
    """How the table writes a default."""
    if one.default_factory is not dataclasses.MISSING:
        return repr(one.default_factory())
    if one.default is dataclasses.MISSING:
        return ""
    if isinstance(one.default, str):
        return f'"{one.default}"'
    return f"{one.default:g}" if isinstance(one.default, float) else repr(one.default)


def test_every_argument_of_distill_stands_in_the_table_with_its_default() -> None:
    _, _, rows = PAGE.partition("## `Distill`")
    found = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|.*\|$", rows, re.MULTILINE)
    assert found == [(one.name, shown(one)) for one in dataclasses.fields(Distill)]


def test_a_hint_is_written_as_it_is() -> None:
    given = [one.name if not shown(one) else f"{one.name}={one.default!r}" for one in
             dataclasses.fields(Hint)]  # fmt: skip
    assert f"`Hint({', '.join(given)})`" in PAGE


def test_every_function_stands_in_the_table() -> None:
    table = re.findall(r"^\| `(\w+)\(([\w, ]*)\)` \|", PAGE, re.MULTILINE)
    assert dict(table) == {name: ", ".join(given) for name, given in {**NEEDED, **OPTIONAL}.items()}


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_paddle()
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "job.py").write_text(EXAMPLE)
    parts = assemble(load_job(tmp_path / "job.py"))
    sys.modules.pop("edl_job_job")
    numbers = sum(int(one.size) for one in parts.model.parameters())
    assert f"model: {type(parts.model).__name__}, {numbers:,} parameters" in PAGE
    shown = re.search(r"^    a step here, without teachers: (.*)$", PAGE, re.MULTILINE)
    assert shown is not None
    words = [re.sub(r"[\d.]+", "N", text) for text in (shown[1], rehearse(parts).line())]
    assert words[0] == words[1]
