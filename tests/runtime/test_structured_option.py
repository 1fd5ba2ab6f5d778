"""Options with several keys: what they accept, what they refuse, and what their help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer

from edl.runtime.errors import UsageError
from edl.runtime.structured_option import Given, Key, StructuredOption
from edl.tests.cli_output import output_of, run


@dataclass(frozen=True, slots=True)
class Cache:
    folder: Annotated[Path | None, Key("Where it is.", metavar="FOLDER")] = None
    gib: Annotated[float, Key("Its limit.", "EDL_TRIAL_GIB", at_least=0.5)] = 2.0
    files: Annotated[int | None, Key("Most files.", at_least=1)] = None
    sizes: Annotated[str, Key("Preferred sizes.")] = ""
    shared: Annotated[bool, Key("Others read it.")] = False
    keep_for: Annotated[Literal["hour", "day"], Key("How long.")] = "day"


CACHE = StructuredOption("--cache", Cache, first="folder")
LIMIT = StructuredOption("--limit", Cache)


def read(*texts: str) -> Cache:
    return CACHE.read([CACHE(text) for text in texts])


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        ((), Cache()),
        (("/models",), Cache(Path("/models"))),
        (("/a=b",), Cache(Path("/a=b"))),
        (("a,b,gib=3",), Cache(Path("a,b"), 3.0)),
        (("folder=/m,sizes=4,8,files=7",), Cache(Path("/m"), files=7, sizes="4,8")),
        (("shared=on,keep-for=hour",), Cache(shared=True, keep_for="hour")),
        (("/m", "gib=4", "gib=5"), Cache(Path("/m"), 5.0)),
    ],
)
def test_what_is_accepted(texts: tuple[str, ...], value: Cache) -> None:
    assert read(*texts) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/m,gibs=3", "unknown key 'gibs'; did you mean 'gib'? There are: folder, gib, files"),
        ("/m,colour=3", "unknown key 'colour'; There are: folder, gib"),
        ("", "expects KEY=VALUE,... with keys folder, gib"),
        ("gib=0.1", "gib: expects a number of at least 0.5, got 0.1"),
        ("gib=nan", "gib: expects a number of at least 0.5, got nan"),
        ("gib=much", "gib: expects a number of at least 0.5, got 'much'"),
        ("files=1.5", "files: expects a whole number of at least 1, got '1.5'"),
        (f"files={'9' * 400}", "files: expects a whole number of at least 1, got '999"),
        ("shared=perhaps", "shared: expects on or off, got 'perhaps'"),
        ("keep-for=week", "keep-for: expects hour or day, got 'week'"),
        ("sizes=", "sizes: expects a value"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        CACHE(text)
    assert says in str(refused.value)


def test_an_option_whose_keys_are_all_named_takes_no_bare_value() -> None:
    with pytest.raises(typer.BadParameter, match="expects KEY=VALUE"):
        LIMIT("/models")


def test_a_key_goes_before_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_TRIAL_GIB", "9")
    assert (read().gib, read("gib=3").gib) == (9.0, 3.0)
    monkeypatch.setenv("EDL_TRIAL_GIB", "")
    assert read().gib == 2.0
    monkeypatch.setenv("EDL_TRIAL_GIB", "much")
    assert read("gib=3").gib == 3.0
    with pytest.raises(UsageError, match="EDL_TRIAL_GIB: expects a number"):
        read()


def test_the_words_of_a_command_line() -> None:
    words = CACHE.words({"folder": Path("/m"), "gib": 3.5, "files": None})
    assert words == ["--cache=folder=/m,gib=3.5"]
    assert read(words[0].partition("=")[2]) == Cache(Path("/m"), 3.5)
    assert CACHE.words({"files": None}) == []


def test_the_help_tells_of_each_key() -> None:
    app = typer.Typer()

    @app.command()
    def keep(cache: Annotated[list[Given] | None, CACHE.option("What to keep.")] = None) -> None:
        print(CACHE.read(cache))

    shown = " ".join(output_of(app, "--help").replace("│", " ").split())
    for part in (
        "FOLDER[,KEY=VALUE...] What to keep.",
        "FOLDER: Where it is.",
        "gib=NUMBER: Its limit. [env var: EDL_TRIAL_GIB; default: 2]",
        "shared=on|off: Others read it.",
        "keep-for=hour|day: How long. [default: day]",
    ):
        assert part in shown
    assert "gib=4.0" in output_of(app, "--cache", "/m,gib=4")
    assert run(app, "--cache", "/m,gibs=4").exit_code == 2


def test_a_shell_completes_keys() -> None:
    assert list(CACHE.completions("/m,fi")) == ["/m,files="]
    assert list(LIMIT.completions("gib=3,")) == [
        f"gib=3,{key}=" for key in ("folder", "files", "sizes", "shared", "keep-for")
    ]
