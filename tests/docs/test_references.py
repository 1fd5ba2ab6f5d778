"""The tables of docs/reader.md and docs/job-file.md have every argument with its default."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl.distill_reader import Callback, DistilReader
from edl.student import Distill, load_job
from edl.student.job.spec import NEEDED, OPTIONAL

DOCS = Path(__file__).resolve().parents[2] / "docs"
JOB_FILE = (DOCS / "job-file.md").read_text()
READER = (DOCS / "reader.md").read_text()


def shown(default: Any) -> str:
    """How the tables write a default."""
    if default is inspect.Parameter.empty:
        return ""
    if type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "{}"
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, int | float) and not isinstance(default, bool):
        return f"{int(default) >> 20} MiB" if default >= 1 << 20 else f"{default:g}"
    if type(default).__module__.startswith("edl.") and default == type(default)():
        return f"{type(default).__name__}()"
    return repr(default)


@pytest.mark.parametrize(
    ("documented", "section"),
    [(DistilReader, READER.partition("## All arguments")[2]),
     (Distill, JOB_FILE.partition("## `Distill`")[2])],
)  # fmt: skip
def test_arguments_and_defaults(documented: Callable[..., Any], section: str) -> None:
    arguments = inspect.signature(documented).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    expected = [(one.name, shown(one.default)) for one in arguments if one.kind in kinds]
    assert re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|.*\|$", section, re.M) == expected


def test_functions_of_a_job_file() -> None:
    table = re.findall(r"^\| `(\w+)\(([\w, ]*)\)` \|", JOB_FILE, re.MULTILINE)
    assert dict(table) == {name: ", ".join(given) for name, given in {**NEEDED, **OPTIONAL}.items()}


def test_callbacks_of_the_reader() -> None:
    for name in (name for name in vars(Callback) if name.startswith("on_")):
        arguments = [*inspect.signature(getattr(Callback, name)).parameters][1:]
        (listed,) = re.findall(rf"^\|.*`{name}\(([^)]*)\)`.*\|", READER, re.MULTILINE)
        assert len(listed.split(", ")) == len(arguments)


@pytest.mark.system
def test_the_example_of_a_job_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edl.student.job.assembly import assemble
    from edl.student.job.rehearsal import rehearse
    from edl.teacher.backends.paddle_runtime import import_paddle

    import_paddle()
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "job.py").write_text(re.findall(r"```python\n(.*?)```", JOB_FILE, re.DOTALL)[0])
    parts = assemble(load_job(tmp_path / "job.py"))
    sys.modules.pop("edl_job_job")
    numbers = sum(int(one.size) for one in parts.model.parameters())
    assert f"model: {type(parts.model).__name__}, {numbers:,} parameters" in JOB_FILE
    assert rehearse(parts).line()
