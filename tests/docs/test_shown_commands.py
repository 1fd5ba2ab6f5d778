"""Commands of `edl` that pages show are ones that it takes, also where no test runs them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from edl.tests.deploy.command_lines import WrongCommand, check, is_ours

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    str(file.relative_to(ROOT)): file
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
#: A line of a block that is indented by four blanks or fenced, with those that it goes on in.
SHOWN = re.compile(r"^(?:    |\$ )?((?:edl|edl-teacher) (?:.*\\\n)*.*)$", re.MULTILINE)
BLOCK = re.compile(r"^ *```(?:console|bash|sh)?\n(.*?)^ *```|^((?:    .*\n)+)", re.M | re.DOTALL)


def shown(text: str) -> list[str]:
    """The commands of `edl` in the blocks of a page, without comments."""
    blocks = ("".join(map(str, filter(None, found))) for found in BLOCK.findall(text))
    return [command for block in blocks for command in SHOWN.findall(block)]


def words(command: str) -> list[str]:
    """Its words, up to the first that is the shell's."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    found = list(lexer)
    end = (at for at, word in enumerate(found) if set(word) <= set("|&;>"))
    return found[: next(end, len(found))]


def wrong(command: str) -> str | None:
    """What `edl` would say against it; None: nothing, but for what `...` leaves out."""
    argv = words(command)
    assert is_ours(argv)
    try:
        check([word for word in argv if word != "..."])
    except WrongCommand as error:
        left_out = "..." in argv and "Missing" in str(error)
        return None if left_out else str(error)
    return None


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if shown(file.read_text())])
def test_edl_takes_what_a_page_shows(name: str) -> None:
    said = [wrong(command) for command in shown(FILES[name].read_text())]
    assert [one for one in said if one] == []
