"""The sessions of all pages: each command is run, and prints what the page shows (`pages.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.tests.docs.pages import File, PageError, Run, missing, parse, read
from edl.tests.docs.shell import ROOT, Mismatch, play

pytestmark = pytest.mark.system

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {page.name: page for page in (read(file, ROOT) for file in FILES) if page.runs}
#: Pages of which a part takes too long for every run of the tests.
LONGER = [name for name, page in PAGES.items() if page.nightly]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_shows(name: str, tmp_path: Path) -> None:
    play(PAGES[name], tmp_path, short=True)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LONGER)
def test_all_of_a_page_does_what_it_shows(name: str, tmp_path: Path) -> None:
    play(PAGES[name], tmp_path, short=False)


def test_pages_with_sessions_are_found() -> None:
    assert "docs/tutorial.md" in PAGES


# --- pages that break the convention, or do something else than they show, are found


def console(text: str, before: str = "") -> str:
    return f"{before}\n```console\n{text}\n```\n"


def test_a_page_is_read_in_its_order() -> None:
    text = (
        '<!-- session: ports 6379=EDL_REDIS_PORT 8080 -->\n```python title="a/b.py"\nx = 1\n```\n'
        + console("$ one \\\n    more\n\nsaid ...\n$ two &", "<!-- session: within 60 s -->")
        + console("$ three", "<!-- session: nightly -->\n<!-- session: fails 2 -->")
        + console("$ never", "<!-- session: skip it needs a cluster -->")
        + "```python\nx = 2\n```\n    $ indented\n<!-- session: run\ncd a\nls\n-->\n"
    )
    page = parse(text, "page.md")
    assert page.ports == {"6379": "EDL_REDIS_PORT", "8080": ""}
    assert page.steps == (
        File(2, "a/b.py", "x = 1\n"),
        Run(7, "one \\\n    more", ("said ...",), within_s=60.0),
        Run(11, "two", background=True, within_s=60.0),
        Run(16, "three", code=2, nightly=True),
        Run(26, "cd a\nls", hidden=True),
    )
    assert page.runs
    assert page.nightly


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (console("output"), "page.md:3: output without a command"),
        (console(""), "page.md:2: a console block without a command"),
        (console("$ a", "<!-- session: whenever -->"), "page.md:1: a comment"),
        (console("$ a", "<!-- session: skip -->"), "page.md:1: a comment"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        parse(text, "page.md")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a\n...\nd", "a\nb\n"),
        ("3 teachers", "2 teachers"),
        ("a ... b", "ab"),
        ("127.0.0.1", "127.0.0.2"),
        ("loss 0.5", "loss nan"),
        ("", "surprise"),
    ],
)
def test_another_output_is_noticed(shown: str, printed: str) -> None:
    assert missing(shown.splitlines(), printed) is not None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (console("$ echo a\nb"), "page.md:3: \\$ echo a\nshown is: b\n  there is: a"),
        (console("$ echo a"), "not shown is: a"),
        (console("$ false"), "its exit code is 1, not 0"),
        (console("$ true", "<!-- session: fails 2 -->"), "its exit code is 0, not 2"),
        (console("$ sleep 300", "<!-- session: within 1 s -->"), "longer than 1 s"),
        (console("$ echo no &\nyes"), "shown is: yes"),
        (console("$ exit 0"), "ends the shell"),
    ],
)
def test_a_page_that_shows_something_else_fails(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match=says):
        play(parse(text, "page.md"), tmp_path, short=True)
