"""The site: what its hooks make of pages, and that a page with something wrong does not build."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

import edl.distill_reader
import edl.student
from edl.commands import app

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "docs" / "hooks"


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"edl_docs_{name}", HOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


commands = hook("commands")
links = hook("links")
WALKED = {command.path: command for command in commands.walk()}


def test_every_command_stands_in_the_reference() -> None:
    listed = set(re.findall(r"^##+ `(.*)`$", commands.commands(), re.MULTILINE))
    assert listed == set(WALKED)
    assert {"edl", "edl teacher serve", "edl job submit", "edl bench"} <= listed


@pytest.mark.parametrize(
    "path", ["edl teacher serve", "edl coordinator serve", "edl student train"]
)
def test_what_help_says_stands_there(path: str) -> None:
    """Held against the help as it is printed, which is written by somebody else."""
    printed = CliRunner().invoke(
        app, [*path.split()[1:], "--help"], env={"COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1"}
    )
    options = WALKED[path].options
    assert printed.exit_code == 0
    flags = set(re.findall(r"--[a-z][a-z-]+", " ".join(one.names for one in options)))
    said = re.findall(r"^│? *\*? *(?:-\w,? *)?(--[a-z][a-z-]+)", printed.output, re.MULTILINE)
    assert set(said) - {"--help"} <= flags
    assert len(said) > 15
    named = set(re.findall(r"\[env var: (\w+)", printed.output))
    assert named == {one.variable for one in options if one.variable}


def test_every_variable_stands_in_its_table_with_its_readers() -> None:
    table = commands.variables()
    (row,) = re.findall(r"^\| `EDL_REDIS_PORT` \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    assert "[`edl coordinator serve`](cli.md#edl-coordinator-serve)" in row[0]
    assert "Port of the Redis that is started" in row[1]
    named = {one.variable for command in WALKED.values() for one in command.options}
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == named - {""}


@pytest.mark.parametrize("package", [edl.distill_reader, edl.student])
def test_every_public_name_stands_in_the_reference(package: ModuleType) -> None:
    text = (ROOT / "docs/reference/python.md").read_text()
    listed = re.findall(rf"^::: {package.__name__}\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(package.__all__)


def test_no_variable_of_the_package_is_missing() -> None:
    shown = commands.variables() + (ROOT / "docs/reference/environment.md").read_text()
    code = [*ROOT.glob("*.py")]
    for package in (path.parent for path in ROOT.glob("*/__init__.py")):
        if package.name != "tests":
            code += package.rglob("*.py")
    found = {name for file in code for name in re.findall(r'"(EDL_[A-Z_]+)"', file.read_text())}
    assert {"EDL_DEBUG", "EDL_COORDINATOR", "EDL_JOB_NODE"} <= found
    assert {name for name in found if f"`{name}`" not in shown} == set()


def test_every_field_of_a_resource_stands_in_the_reference() -> None:
    resources = hook("resources")
    written = resources.resources()
    rows = re.findall(r"^\| `((?:spec|status)\.[^`]+)`", written, re.MULTILINE)
    (said,) = re.findall(
        r"^\| `spec.replicas` \| (\w+) \| (.*?) \| (.*) \|$", written, re.MULTILINE
    )
    assert said[0] == "integer"
    assert "`kubectl scale` sets it" in said[2]
    count = 0
    for file in resources.definitions():
        text = file.read_text()
        for message in re.findall(r'message: "(.*)"$', text, re.MULTILINE):
            assert message.replace("*", "\\*").replace("<", "&lt;") in written
        (version,) = yaml.safe_load(text)["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        count += sum(len(schema[part]["properties"]) for part in ("spec", "status"))
    assert len([path for path in rows if path.count(".") == 1]) == count
    assert {"spec.minNodes", "status.conditions[].type", "spec.maxReplicas"} <= set(rows)


@pytest.mark.parametrize(
    ("place", "text", "becomes"),
    [
        ("a.md", "[x](../examples/text.py)", "[x](source/examples/text.py.listing.md)"),
        ("adr/a.md", "[x](../reader.md#feeds)", "[x](../reader.md#feeds)"),
        ("adr/a.md", "[x](../../CONTRIBUTING.md)", "[x](../contributing.md)"),
        ("changelog.md", "[x](docs/reader.md)", "[x](reader.md)"),
        ("source/README.md", "![x](docs/mesh.svg)", "![x](../mesh.svg)"),
        ("a.md", "[x](../benchmarks/results)", "[x](source/benchmarks/results.listing.md)"),
        ("a.md", "[x](../nowhere.py) and `[x](../LICENSE)`", None),
        ("a.md", "```\n[x](../LICENSE)\n```\n[x](https://keda.sh)", None),
    ],
)
def test_links_out_of_the_pages_lead_to_the_site(place: str, text: str, becomes: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
    assert links.on_page_markdown(text, page) == (becomes or text)


def test_the_nav_has_every_page_once() -> None:
    nav = hook("nav")
    config = SimpleNamespace(**yaml.safe_load((ROOT / "mkdocs.yml").read_text()))
    config.docs_dir = str(ROOT / "docs")
    named = nav._named(nav.on_config(config).nav)
    there = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(there | set(links.NAMED.values()))
    assert named.index("adr/README.md") < named.index("adr/0001-layout.md")


def test_lists_get_the_blank_line_that_they_need() -> None:
    text = "word:\n- a\n  b\n- c\n\n```\nword\n- d\n```\n"
    assert hook("lists").on_page_markdown(text) == text.replace(":\n-", ":\n\n-")


def test_a_page_with_something_wrong_does_not_build(tmp_path: Path) -> None:
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
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert built.returncode == 1
    for wrong in ("lost.md", "'b.md'", "#c", "nowhere.py", "loads https://example.org/x.png"):
        assert wrong in built.stderr, built.stderr


def test_a_bar_in_a_cell_stays_one_and_splits_nothing() -> None:
    """Python-Markdown keeps the backslash of an escaped one between backquotes."""
    written = commands.commands() + "\n" + hook("resources").resources()
    assert "`--lr-policy <keep|linear|sqrt>`" in written
    assert "`^(redis|rediss|" in written
    rows = [line for line in written.splitlines() if line.startswith("| ")]
    bars = {re.sub(r"`[^`]*`|\\\|", "", row).count("|") for row in rows}
    assert bars == {5}
