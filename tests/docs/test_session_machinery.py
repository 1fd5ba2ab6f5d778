"""The machinery that runs pages finds what is wrong with one, and ends what it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.tests.docs.pages import File, PageError, Run, missing, parse, put
from edl.tests.docs.shell import Mismatch, play


def console(text: str, before: str = "") -> str:
    return f"{before}\n```console\n{text}\n```\n"


def played(text: str, folder: Path, *, short: bool = True) -> None:
    play(parse(text, "page.md"), folder, short=short)


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
    assert page.skipped == {19: "it needs a cluster"}
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
        ("a  b", "a b"),
        ("a\n...\nd", "a\nb\n\nc\nd\n"),
        ("...\na", "b\na\na\n"),
        ("took ... s, 0.93", "took 12 s, 0.9\n"),
        ("a ... b", "a b"),
        ("... a.../b", "a1/b"),
        ("loss 0.5", "\x1b[1mloss 12.25\x1b[0m"),
        ("──── x", "── x"),
        ("", "\n\n"),
    ],
)
def test_an_output_is_the_one_that_is_shown(shown: str, printed: str) -> None:
    assert missing(shown.splitlines(), printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a\n...\nd", "a\nb\n"),
        ("3 teachers", "2 teachers"),
        ("a ... b", "ab"),
        ("... b", "cb"),
        ("edl-dist 0.1.0", "edl-dist 0.2.0"),
        ("127.0.0.1", "127.0.0.2"),
        ("loss 0.5", "loss nan"),
        ("", "surprise"),
    ],
)
def test_another_output_is_not(shown: str, printed: str) -> None:
    assert missing(shown.splitlines(), printed) is not None


def test_fractions_are_compared_where_that_is_said() -> None:
    assert missing(["loss 0.5"], "loss 0.5", exact=True) is None
    assert missing(["loss 0.5"], "loss 0.6", exact=True) is not None


def test_ports_are_replaced_where_they_stand_as_ports() -> None:
    text = "redis://127.0.0.1:6379/0 --port 6379 16379 x6379 6379.5"
    assert put(text, {"6379": 1}) == "redis://127.0.0.1:1/0 --port 1 16379 x6379 6379.5"


def test_a_session_is_one_shell(tmp_path: Path) -> None:
    played(
        console("$ export A=1 && mkdir x && cd x\n$ sleep 300 &\n$ kill -9 %1")
        + console("$ wait; echo over\nover")
        + console('$ echo "$A" "$(basename "$PWD")" $NAME\n1 x given')
        + '```text title="f"\nport 8080\n```\n<!-- session: ports 8080=PORT -->'
        + "<!-- session: env NAME=given -->"
        + console('$ grep -c "port $PORT" ../f\n1'),
        tmp_path,
    )  # fmt: skip


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
        played(text, tmp_path)


def test_a_job_is_brought_to_the_foreground(tmp_path: Path) -> None:
    job = "(echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 3)"
    begin = console(f"$ sleep 300 &\n$ {job} &\none\n$ touch go")
    played(begin + console("$ fg %2\n...\ntwo", "<!-- session: fails 3 -->"), tmp_path)
    (again := tmp_path / "again").mkdir()
    with pytest.raises(Mismatch, match="there is: one"):
        played(begin + console("$ fg %2\ntwo", "<!-- session: fails 3 -->"), again)


def test_what_is_repeated_may_come_later(tmp_path: Path) -> None:
    later = "(mkfifo f; read < f; touch here)"
    until = "<!-- session: until -->\n"
    played(console(f"$ {later} &") + console("$ ls\nf", until) + console("$ echo > f")
           + console("$ ls\nf\nhere", until), tmp_path)  # fmt: skip


def test_nightly_blocks_are_left_out_of_the_short_form(tmp_path: Path) -> None:
    text = console("$ false", "<!-- session: nightly -->")
    played(text, tmp_path)
    (again := tmp_path / "again").mkdir()
    with pytest.raises(Mismatch, match="exit code"):
        played(text, again, short=False)
