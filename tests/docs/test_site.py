"""The site: the reference and the lists of arguments are complete, and its hooks work."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import edl.distill_reader
import edl.runtime.errors
import edl.student
from edl.cli import command_line
from edl.distill_reader import Callback, DistilReader
from edl.student import Distill, load_job
from edl.student.job.spec import NEEDED, OPTIONAL
from edl.tests.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "docs" / "hooks"
JOB_FILE = (ROOT / "docs" / "reference" / "job-file.md").read_text()
READER = (ROOT / "docs" / "how-to" / "reader.md").read_text()


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"edl_docs_{name}", HOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


commands, errors, links, resources = map(hook, ("commands", "errors", "links", "resources"))

#: Errors that users do not see: groups, and those that the package handles itself.
INTERNAL = {
    *("EdlError", "UnavailableError", "AccessError", "TeacherError", "RetryableError"),
    *("StartCancelled", "PeerLost", "DeadlineExceeded", "PredictorCrashed", "WrongInstance"),
    *("InputsOverwritten", "GenerationSuperseded"),
    *("KubernetesObjectChanged", "KubernetesObjectExists"),
}


def test_the_reference_has_every_command_and_escapes_bars_in_cells() -> None:
    written = commands.commands()
    listed = set(re.findall(r"^##+ `(.*)`$", written, re.MULTILINE))
    assert listed == {command.path for command in commands.walk()}
    assert {"edl", "edl teacher serve", "edl apply", "edl bench"} <= listed
    # Python-Markdown keeps the backslash of an escaped bar between backquotes.
    written += "\n" + resources.resources()
    assert "`--lr-policy <keep|linear|sqrt>`" in written
    assert "`^(redis|rediss|" in written
    rows = [line for line in written.splitlines() if line.startswith("| ")]
    assert {re.sub(r"`[^`]*`|\\\|", "", row).count("|") for row in rows} == {5}


def test_the_reference_has_the_options_and_variables_that_help_prints() -> None:
    shown = {"COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1"}
    printed = CliRunner().invoke(command_line(), ["teacher", "serve", "--help"], env=shown).output
    (command,) = (one for one in commands.walk() if one.path == "edl teacher serve")
    flags = set(re.findall(r"--[a-z][a-z-]+", " ".join(one.names for one in command.options)))
    said = set(re.findall(r"^│? *\*? *(?:-\w,? *)?(--[a-z][a-z-]+)", printed, re.MULTILINE))
    assert said - {"--help"} <= flags
    assert len(said) > 15
    named = set(re.findall(r"\[env var: (\w+)", printed))
    assert named == {name for one in command.options for name in one.variables}


@pytest.mark.parametrize("package", [edl.distill_reader, edl.student])
def test_the_reference_has_every_public_name(package: ModuleType) -> None:
    text = (ROOT / "docs/reference/python.md").read_text()
    listed = re.findall(rf"^::: {package.__name__}\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(package.__all__)


def test_the_reference_has_every_integration() -> None:
    text = (ROOT / "docs/reference/python.md").read_text()
    listed = set(re.findall(r"^::: edl\.integrations\.(\w+)$", text, re.MULTILINE))
    modules = {path.stem for path in (ROOT / "integrations").glob("[!_]*.py")}
    assert listed == modules - {"on_demand"}  # which others use


def test_every_error_that_users_see_has_a_remedy() -> None:
    defined = {name for name, one in vars(edl.runtime.errors).items() if isinstance(one, type)}
    assert defined - set(re.findall(r"^\| `(\w+)` \|", errors.table(), re.MULTILINE)) == INTERNAL


def test_the_reference_has_every_field_of_a_resource() -> None:
    rows = re.findall(r"^\| `((?:spec|status)\.[^`]+)`", resources.resources(), re.MULTILINE)
    count = 0
    for file in resources.definitions():
        (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        count += sum(len(schema[part]["properties"]) for part in ("spec", "status"))
    assert len([path for path in rows if path.count(".") == 1]) == count
    assert {"spec.minNodes", "status.conditions[].type", "spec.maxReplicas"} <= set(rows)


@pytest.mark.parametrize(
    ("documented", "section", "page"),
    [(DistilReader, "Args", READER), (Distill, "Attributes", JOB_FILE)],
)
def test_the_reference_and_the_page_have_every_argument(
    documented: Callable[..., Any], section: str, page: str
) -> None:
    arguments = inspect.signature(documented).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [one.name for one in arguments if one.kind in kinds]
    text = str(inspect.getdoc(documented)).partition(f"\n{section}:\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^    (\w+): ", text, re.MULTILINE)) == sorted(names)
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


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
    from edl.student.dry_run import rehearse
    from edl.student.job.assembly import assemble
    from edl.teacher.backends.paddle import import_paddle

    import_paddle()
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "job.py").write_text(re.findall(r"```python\n(.*?)```", JOB_FILE, re.DOTALL)[0])
    parts = assemble(load_job(tmp_path / "job.py"))
    sys.modules.pop("edl_job_job")
    numbers = sum(int(one.size) for one in parts.model.parameters())
    assert f"model: {type(parts.model).__name__}, {numbers:,} parameters" in JOB_FILE
    assert rehearse(parts).line()


# --- hooks


@pytest.mark.parametrize(
    ("place", "text", "becomes"),
    [
        ("a.md", "[x](../examples/text.py)", "[x](source/examples/text.py.listing.md)"),
        ("adr/a.md", "[x](../reader.md#feeds)", "[x](../reader.md#feeds)"),
        ("adr/a.md", "[x](../../CONTRIBUTING.md)", "[x](../contributing.md)"),
        ("changelog.md", "[x](docs/tutorial.md)", "[x](tutorial.md)"),
        ("source/README.md", "![x](docs/mesh.svg)", "![x](../mesh.svg)"),
        ("a.md", "[x](../benchmarks/results)", "[x](source/benchmarks/results.listing.md)"),
        ("a.md", "[x](../benchmarks/results/README.md#in-short)", "[x](benchmarks.md#in-short)"),
        ("benchmarks.md", "[x](.)", "[x](source/benchmarks/results.listing.md)"),
        ("a.md", "[x](../nowhere.py) and `[x](../LICENSE)`", None),
        ("a.md", "```\n[x](../LICENSE)\n```\n[x](https://keda.sh)", None),
    ],
)
def test_links_to_other_files_are_rewritten(place: str, text: str, becomes: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
    assert links.on_page_markdown(text, page) == (becomes or text)


def test_lists_get_a_blank_line_before_them() -> None:
    text = "word:\n- a\n  b\n- c\n\n```\nword\n- d\n```\n"
    assert hook("lists").on_page_markdown(text) == text.replace(":\n-", ":\n\n-")


def test_the_nav_has_every_page_once() -> None:
    config = SimpleNamespace(**yaml.safe_load((ROOT / "mkdocs.yml").read_text()))
    config.docs_dir = str(ROOT / "docs")
    named = re.findall(r'"([^"]+\.md)"', json.dumps(hook("nav").on_config(config).nav))
    there = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(there | set(links.NAMED.values()))
    assert named.index("adr/README.md") < named.index("adr/0001-layout.md")


@pytest.mark.system
def test_a_page_with_an_error_does_not_build(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(
        "# A\n[b](b.md) [c](#c) [d](../nowhere.py)\n<img src='x.png'>\n"
        '<img src="https://example.org/x.png">\n'
    )
    (tmp_path / "docs" / "lost.md").write_text("# Not in the nav\n")
    config |= {"hooks": [str(HOOKS / name) for name in ("links.py", "private.py")]}
    config |= {"nav": ["index.md"], "plugins": [], "site_dir": "site"}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    command = (sys.executable, "-P", "-m", "mkdocs", "build", "--strict")
    built = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert built.returncode == 1
    for wrong in ("lost.md", "'b.md'", "#c", "nowhere.py", "loads https://example.org/x.png"):
        assert wrong in built.stderr, built.stderr
