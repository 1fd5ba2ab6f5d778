"""What the pages show is what happens: reads the sessions of a page, and compares outputs.

**The convention**, for whoever writes a page under `docs/` (or README.md). A page with a ```console
block has a *session*: one shell (bash) in one empty folder, in which all of its blocks are run from
top to bottom by `test_sessions.py`, with `edl`, `edl-teacher` and `python` of the environment on
PATH. `export`, `cd`, `%1`, `$!` work from block to block as they do for a reader.

    ```console
    $ edl coordinator serve &
    coordinator ready: redis://127.0.0.1:6379 manager ...
    $ edl status
    ...
    no teachers
    ```

*Commands* are the lines that begin with `$ `; a line that ends with a backslash goes on in the next
one. Below stands what the command prints, stdout and stderr together:

- `...` alone on a line is any number of lines, also none; within a line it is any text;
- a decimal fraction (`0.93`, `12.5`) is any number, as it was measured. Whole numbers, versions and
  addresses are compared, so write `...` for a count, a process id or a time of the day;
- runs of blanks and of box drawing lines count as one, blank lines and colours as none;
- a command below which nothing is shown prints nothing (write `...` if it may).

A command that ends with `&` stays in the background. If something is shown below it, the session
goes on as soon as *that* has been printed, at its start. All that runs at the end of the page is
ended (SIGTERM, the youngest first). `fg %3` waits for job 3 to end, and what is shown below it is
held against *all* that it has printed: begin with `...`. A command fails the test if its exit code
is not 0.

*Files*: a fenced block with a title is written before what stands below it, and the site shows its
name: ```python title="student.py" . Folders are made.

*What the reader does not see* is in comments; those of the lower half are for the next block only:

    <!-- session: ports 6379=EDL_REDIS_PORT 8080 -->
                            these ports of the page are free ones in the test, wherever they stand:
                            commands, files, outputs. `=NAME` also puts that one into a variable,
                            for a command that has it as its default
    <!-- session: env NAME=VALUE ... -->   variables (after ports have been replaced)
    <!-- session: run COMMAND -->          commands, one or many lines; what they print is not read;
                            $CLONE is the root of the repository:  run ln -s "$CLONE/examples" .

    <!-- session: until -->       each command is repeated until it prints what is shown
    <!-- session: exact -->       decimal fractions are compared, too
    <!-- session: fails 2 -->     each command ends with this exit code
    <!-- session: within 120 s --> a command may take as long (default: 60 s)
    <!-- session: nightly -->     the block is left out in `make test` and run by `make nightly`
    <!-- session: skip REASON --> the block is never run (a cluster, another machine): say why

Blocks that are indented by four blanks, or fenced as something else, are not run; commands of `edl`
in them have to be ones that it takes (`test_shown_commands.py`). CI has about 40 s for
all pages together: few processes that start, small models, and `nightly` for the rest.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 60.0
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
    """A page that does not keep to the convention; the message says where."""


@dataclass(frozen=True)
class Run:
    """A command of a page.

    Attributes:
        line: its line in the page.
        command: for the shell; without the `&` of one in the background.
        shown: lines of output below it.
        background: it stays.
        hidden: of a comment: nobody reads what it prints.
        until: repeated until it prints what is shown.
        exact: decimal fractions are compared.
        code: its exit code.
        within_s: seconds that it may take.
        nightly: left out in the short form of the page.
    """

    line: int
    command: str
    shown: tuple[str, ...] = ()
    background: bool = False
    hidden: bool = False
    until: bool = False
    exact: bool = False
    code: int = 0
    within_s: float = PATIENCE_S
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
    """The session of a page: what is done, in order; ports and variables that it asks for.

    Attributes:
        name: relative to the root of the repository.
        steps: commands and files.
        ports: a port as the page shows it -> the variable that holds it, or "".
        variables: further ones.
        skipped: why blocks are never run, by their lines.
    """

    name: str
    steps: tuple[Run | File, ...]
    ports: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[int, str] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether it shows a command."""
        return any(isinstance(step, Run) and not step.hidden for step in self.steps)

    @property
    def nightly(self) -> bool:
        """Whether a part of it is left out in the short form."""
        return any(step.nightly for step in self.steps)


def read(file: Path, root: Path) -> Page:
    """The session of a page. Raises PageError."""
    return parse(file.read_text("utf-8"), str(file.relative_to(root)))


def parse(text: str, name: str) -> Page:
    """The session of a page's text. Raises PageError."""
    steps: list[Run | File] = []
    ports: dict[str, str] = {}
    variables: dict[str, str] = {}
    skipped: dict[int, str] = {}
    said = _Said()
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["said"] is not None:
            word, rest = [*part["said"].strip().split(maxsplit=1), "", ""][:2]
            if word in ("ports", "env"):
                pairs = (one.partition("=") for one in rest.split())
                (ports if word == "ports" else variables).update((a, b) for a, _, b in pairs)
            elif word == "run":
                steps.append(said.run(line, textwrap.dedent(rest), hidden=True))
                said = _Said()
            else:
                said.hear(word, rest, f"{name}:{line}")
            continue
        title = _TITLE.search(part["info"])
        body = textwrap.dedent(part["text"]) if part["indent"] else part["text"]
        if title is None and part["info"].strip() != "console":
            continue  # only shown
        if said.skip:
            skipped[line] = said.skip
        elif title is not None:
            steps.append(File(line, title[1], body, said.nightly))
        else:
            steps += _commands(body, line, said, name)
        said = _Said()
    return Page(name, tuple(steps), ports, variables, skipped)


class _Said:
    """What comments have said of the next block."""

    def __init__(self) -> None:
        self.until = self.exact = self.nightly = False
        self.code = 0
        self.within_s = PATIENCE_S
        self.skip = ""

    def hear(self, word: str, rest: str, place: str) -> None:
        if word in ("until", "exact", "nightly") and not rest:
            setattr(self, word, True)
        elif word == "fails" and rest.isdigit() and int(rest):
            self.code = int(rest)
        elif word == "within" and (found := re.fullmatch(r"(\d+) s", rest)):
            self.within_s = float(found[1])
        elif word == "skip" and rest:
            self.skip = rest
        else:
            raise PageError(f"{place}: a comment 'session: {word} {rest}' is not understood")

    def run(
        self, line: int, command: str, shown: tuple[str, ...] = (), *, hidden: bool = False
    ) -> Run:
        """A command of which this has been said."""
        background = command.endswith("&") and not command.endswith("&&")
        return Run(
            line,
            command.removesuffix("&").rstrip() if background else command,
            shown,
            background,
            hidden,
            until=self.until,
            exact=self.exact,
            code=self.code,
            within_s=self.within_s,
            nightly=self.nightly,
        )


def _commands(body: str, line: int, said: _Said, name: str) -> list[Run]:
    """The commands of a ```console block that begins in `line`."""
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
    return [said.run(at, "\n".join(words).rstrip(), tuple(shown)) for at, words, shown in found]


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
    """What of an output is not as a page shows it, in words; None if all is.

    Args:
        shown: lines of the page, with `...` in them.
        printed: what the command printed.
        at_start: more may follow.
        exact: decimal fractions are compared.
    """
    lines = plain(printed)
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
