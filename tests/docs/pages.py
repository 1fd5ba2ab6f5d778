"""Reads the sessions of pages: commands that are run, and the output that they have to print.

A page of `docs/` (or README.md) with a ```console block has a *session*: one bash in an empty
folder, in which `test_sessions.py` runs all of its blocks, with `edl`, `edl-teacher` and `python`
on PATH. `export`, `cd`, `%1`, `$!` work from block to block, as they do for a reader.

    ```console
    $ edl coordinator serve &
    coordinator ready: redis://127.0.0.1:6379 manager ...
    $ edl status
    ...
    no teachers
    ```

*Commands* begin with `$ `; a backslash at the end continues a line. Below is what the command
prints (stdout and stderr); nothing means that it prints nothing:

- `...` alone on a line is any number of lines; within a line it is any text;
- a decimal fraction (`0.93`, `12.5`) is any number, because it was measured. Whole numbers are
  compared, so write `...` for counts, process ids and times of the day;
- runs of blanks and of box drawing lines count as one; blank lines and colours are ignored;
- so is a reader's warning that it has been waiting for 5 s: it comes on a slow machine only.

A command that ends with `&` stays in the background; the session continues as soon as what is shown
below it has been printed. All of them are ended at the end of the page (SIGTERM, the youngest
first). `fg %3` waits for job 3, and its output is compared as a whole. A command whose exit code is
not 0 fails.

*Files*: a fenced block with a title (```python title="student.py") is written to that file.

*Comments* control the session; those below `run` apply to the next block only:

    <!-- session: ports 6379=EDL_REDIS_PORT 8080 -->   these ports are replaced by free ones
                                   everywhere; `=NAME` also puts one into a variable
    <!-- session: env NAME=VALUE ... -->
    <!-- session: run COMMAND -->  hidden commands, one or many lines; $CLONE is the repository
    <!-- session: until -->        each command is repeated until it prints what is shown
    <!-- session: exact -->        decimal fractions are compared, too
    <!-- session: fails 2 -->      each command ends with this exit code
    <!-- session: within 120 s --> a command may take as long (default: 360 s)
    <!-- session: nightly -->      the block is run by `make nightly` only
    <!-- session: skip REASON -->  the block is never run (a cluster, another machine)

All pages together have about 40 s: start few processes, use small models, and `nightly` for the
rest.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl.tests.waiting import DEADLINE_S

_WAITING = re.compile(r"waiting \d+ s: ")
_PART = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]+)\n(?P<text>.*?)^(?P=indent)```$"
    r"|<!-- session: (?P<said>.*?)-->",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'\btitle="([^"]+)"')
_ANY = "..."
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LINES = re.compile(r"[─━═╌┄]+")
_MEASURED = re.compile(r"(?<![\w.])\d+\\\.\d+(?!\d|\\\.\d)")  # in what re.escape gives


class PageError(Exception):
    """A page that breaks the convention; the message says where."""


@dataclass(frozen=True)
class Run:
    """A command of a page; `command` is without the `&` of one in the background."""

    line: int
    command: str
    shown: tuple[str, ...] = ()
    background: bool = False
    hidden: bool = False
    until: bool = False
    exact: bool = False
    code: int = 0
    within_s: float = 2 * DEADLINE_S  # some train a student
    nightly: bool = False


@dataclass(frozen=True)
class File:
    """A block with a title: a file that is written."""

    line: int
    name: str
    text: str
    nightly: bool = False


@dataclass(frozen=True)
class Page:
    """The session of a page; a port as the page shows it -> the variable that holds it, or ""."""

    name: str
    steps: tuple[Run | File, ...]
    ports: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        return any(isinstance(step, Run) and not step.hidden for step in self.steps)

    @property
    def nightly(self) -> bool:
        return any(step.nightly for step in self.steps)


def read(file: Path, root: Path) -> Page:
    return parse(file.read_text("utf-8"), str(file.relative_to(root)))


def parse(text: str, name: str) -> Page:
    """The session of a page's text. Raises PageError."""
    steps: list[Run | File] = []
    ports: dict[str, str] = {}
    variables: dict[str, str] = {}
    options: dict[str, Any] = {}  # of the next block
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["said"] is not None:
            word, rest = [*part["said"].strip().split(maxsplit=1), "", ""][:2]
            if word in ("ports", "env"):
                pairs = (one.partition("=") for one in rest.split())
                (ports if word == "ports" else variables).update((a, b) for a, _, b in pairs)
            elif word == "run":
                steps.append(_run(line, textwrap.dedent(rest), hidden=True, **options))
                options = {}
            else:
                options |= _option(word, rest, f"{name}:{line}")
            continue
        title = _TITLE.search(part["info"])
        body = textwrap.dedent(part["text"]) if part["indent"] else part["text"]
        if title is None and part["info"].strip() != "console":
            continue  # only shown
        if "skip" not in options and title is not None:
            steps.append(File(line, title[1], body, "nightly" in options))
        elif "skip" not in options:
            steps += _commands(body, line, options, name)
        options = {}
    return Page(name, tuple(steps), ports, variables)


def _option(word: str, rest: str, where: str) -> dict[str, Any]:
    if (word in ("until", "exact", "nightly") and not rest) or (word == "skip" and rest):
        return {word: True}
    if word == "fails" and rest.isdigit() and int(rest):
        return {"code": int(rest)}
    if word == "within" and (found := re.fullmatch(r"(\d+) s", rest)):
        return {"within_s": float(found[1])}
    raise PageError(f"{where}: a comment 'session: {word} {rest}' is not understood")


def _commands(body: str, line: int, options: dict[str, Any], name: str) -> list[Run]:
    found: list[tuple[int, list[str], list[str]]] = []
    for number, text in enumerate(body.splitlines(), line + 1):
        if text.startswith("$ "):
            found.append((number, [text[2:]], []))
        elif found and found[-1][1][-1].endswith("\\") and not found[-1][2]:
            found[-1][1].append(text)
        elif text.strip() and not found:
            raise PageError(f"{name}:{number}: output without a command: begin one with '$ '")
        elif text.strip():
            found[-1][2].append(text)
    if not found:
        raise PageError(f"{name}:{line}: a console block without a command")
    return [
        _run(at, "\n".join(words).rstrip(), shown=tuple(shown), **options)
        for at, words, shown in found
    ]


def _run(line: int, command: str, **options: Any) -> Run:
    background = command.endswith("&") and not command.endswith("&&")
    command = command.removesuffix("&").rstrip() if background else command
    return Run(line, command, background=background, **options)


def put(text: str, ports: Mapping[str, int]) -> str:
    """`text` with the ports of the page replaced by those of the test."""
    if not ports:
        return text
    words = "|".join(map(re.escape, ports))
    return re.sub(rf"(?<![\w.]){'(' + words + ')'}(?![\w.]*\w)", lambda m: str(ports[m[1]]), text)


def plain(text: str) -> list[str]:
    """The lines of an output as they are compared: no colours, blank lines or lengths of lines."""
    lines = (_LINES.sub("─", _COLOUR.sub("", line)).split() for line in text.splitlines())
    return [" ".join(words) for words in lines if words]


def missing(
    shown: Iterable[str], printed: str, *, at_start: bool = False, exact: bool = False
) -> str | None:
    """How an output differs from what a page shows; None: it does not.

    More may follow what is shown `at_start`; decimal fractions are compared if it is `exact`.
    """
    lines = [line for line in plain(printed) if not _WAITING.match(line)]
    ends = {0}  # numbers of lines that what is shown so far may have taken
    for text in plain("\n".join(shown)):
        before = ends
        if text == _ANY:
            ends = set(range(min(ends), len(lines) + 1))
        else:
            wanted = _pattern(text, exact)
            near = (at for at in ends if at < len(lines))
            ends = {at + 1 for at in near if wanted.fullmatch(f" {lines[at]} ")}
        if not ends:
            there = lines[max(before)] if max(before) < len(lines) else "nothing more"
            there = "it does not come" if len(before) > 1 else f"there is: {there}"
            return f"shown is: {text}\n  {there}"
    if at_start or len(lines) in ends:
        return None
    return f"not shown is: {lines[max(ends)]}"


def _pattern(text: str, exact: bool) -> re.Pattern[str]:
    """Of a line of output with a blank before and behind it; `a ... b` is `a b`, too."""
    wanted = re.escape(f" {text} ")
    if not exact:
        wanted = _MEASURED.sub(r"\\d+(?:\\.\\d+)?", wanted)
    any_words, any_text = re.escape(f" {_ANY} "), re.escape(_ANY)
    return re.compile(wanted.replace(any_words, r"\ (?:.*\ )?").replace(any_text, ".*"))
