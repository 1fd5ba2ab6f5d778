"""Pages that break the convention, or do something else than they show, are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.tests.docs.pages import File, PageError, Run, missing, parse, put
from edl.tests.docs.shell import Mismatch, play

pytestmark = pytest.mark.system


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
    text = "redis://127.0.0.1:6379/0 --port 6379 16379 x6379 6379.5"
    assert put(text, {"6379": 1}) == "redis://127.0.0.1:1/0 --port 1 16379 x6379 6379.5"


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
    ("shown", "printed", "same"),
    [
        ("a\n...\nd", "a\nb\n\nc\nd\n", True),
        ("...\na", "b\na\na\n", True),
        ("took ... s, 0.93", "took 12 s, 0.9\n", True),
        ("a ... b", "a b", True),
        ("loss 0.5", "\x1b[1mloss 12.25\x1b[0m", True),
        ("──── x", "── x", True),
        ("", "\n\n", True),
        ("a", "waiting 5 s: 0 of 0 teachers live\na", True),
        ("a", "a\nb", False),
        ("a\nb", "a", False),
        ("a\n...\nd", "a\nb\n", False),
        ("3 teachers", "2 teachers", False),
        ("a ... b", "ab", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("loss 0.5", "loss nan", False),
        ("", "surprise", False),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, same: bool) -> None:
    assert (missing(shown.splitlines(), printed) is None) is same


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
