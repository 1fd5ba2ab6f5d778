"""What pages refer to exists: files, headings, make targets, commands and variables of `edl`."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from pathlib import Path

import pytest

from edl.tests.deploy.command_lines import WrongCommand, check, is_ours

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page
    for folder in ("docs", "deploy", "benchmarks/results")
    for page in [*ROOT.glob("*.md"), *sorted((ROOT / folder).rglob("*.md"))]
}
#: A line of a block that is indented by four blanks or fenced, with its continuation lines.
COMMAND = re.compile(
    r"^(?:    |\$ )?((?:(?:edl|edl-teacher) |docker run )(?:.*\\\n)*.*)$", re.MULTILINE
)
BLOCK = re.compile(r"^ *```(?:console|bash|sh)?\n(.*?)^ *```|^((?:    .*\n)+)", re.M | re.DOTALL)


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("name", PAGES)
def test_links_resolve(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", PAGES[name].read_text()):
        path, _, anchor = target.partition("#")
        file = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_python_blocks_can_be_parsed_and_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for name, page in PAGES.items():
        text = page.read_text()
        for block in re.findall(r"```python[^\n]*\n(.*?)```", text, flags=re.DOTALL):
            ast.parse(block, name)
        assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, name


def commands(text: str) -> list[str]:
    """The commands of `edl` in the blocks of a page, without comments."""
    blocks = ("".join(map(str, filter(None, found))) for found in BLOCK.findall(text))
    return [command for block in blocks for command in COMMAND.findall(block)]


def error_of(command: str) -> str | None:
    """What `edl` says against a command; None: nothing, except for what `...` leaves out."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    argv, variables = [], {}
    for word in lexer:
        if set(word) <= set("|&;>"):  # the rest is the shell's
            break
        argv.append(word)
    if argv[0] == "docker":
        image = next(at for at, word in enumerate(argv) if word.startswith("edl-dist:"))
        options, argv = argv[:image], ["edl", *argv[image + 1 :]]
        values = [value for key, value in itertools.pairwise(options) if key == "--env"]
        variables = dict(value.split("=", 1) for value in values)
    assert is_ours(argv)
    try:
        check([word for word in argv if word != "..."], variables)
    except WrongCommand as error:
        return None if "..." in argv and "Missing" in str(error) else str(error)
    return None


@pytest.mark.parametrize(
    "name", [name for name, file in PAGES.items() if commands(file.read_text())]
)
def test_commands_are_valid(name: str) -> None:
    errors = {command: error_of(command) for command in commands(PAGES[name].read_text())}
    assert {command: error for command, error in errors.items() if error} == {}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("edl coordinator serve --reddis redis://x", "--reddis"),
        ("edl coordinator serve --listen 70000", "70000"),
        ("edl coordinator", "not complete"),
        ("edl student train", "JOB.py"),
        ("docker run --env EDL_MODELL=m edl-dist:1 teacher serve --model m", "EDL_MODELL"),
        ("docker run --env EDL_SLOTS=many edl-dist:1 teacher serve --model m", "EDL_SLOTS"),
    ],
)
def test_invalid_commands_are_found(command: str, says: str) -> None:
    assert says in str(error_of(command))
