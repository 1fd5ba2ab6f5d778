"""The command `edl` itself: its overview, its completion, and options that moved."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from edl import cli
from edl.coordinator.contexts import ContextFile, Contexts, MeshContext
from edl.coordinator.options import ListenAddress
from edl.runtime.structured_option import StructuredOption
from edl.tests.cli_output import output_of
from edl.tests.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def signals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """`edl` would end this process, a test worker, at the next SIGINT."""
    monkeypatch.setattr(cli, "exit_on_interrupt", lambda name: None)


@pytest.mark.parametrize(
    ("module", "words"), [("edl.teacher", ()), ("edl", ("teacher",)), ("edl", ("coordinator",))]
)
def test_a_module_names_the_new_spelling_too(module: str, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-m", module, *words, "serve", "--port", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 2
    assert "it is --listen HOST:PORT now" in ended.stderr


def test_the_overview_shows_what_the_commands_say_of_themselves() -> None:
    assert output_of(cli.overview(), "--help") == output_of(cli.command_line(), "--help")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("edl st", {"status", "student", "store"}),
        ("edl scale s", {"student", "service", "students", "services"}),
        ("edl drain --re", {"--redis"}),
        ("edl drain --context l", {"lab", "left"}),
    ],
)
def test_a_shell_completes(
    words: str,
    offered: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    contexts = Contexts().add("lab", MeshContext()).add("left", MeshContext())
    ContextFile(tmp_path / "c").change(lambda _: contexts.add("prod", MeshContext()))
    monkeypatch.setenv("EDL_CONFIG", str(tmp_path / "c"))
    monkeypatch.setenv("_EDL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setattr(sys, "argv", ["edl"])
    with pytest.raises(SystemExit):
        cli.main()
    assert set(capsys.readouterr().out.split()) == offered


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "status --token-file x",
            "'edl context add NAME --token-file FILE ...', or EDL_TOKEN_FILE",
        ),
        ("status --coordinator x", "it is --redis now"),
        ("drain --host x", "'edl drain machine HOST'"),
        ("coordinator serve --port 3", "it is --listen HOST:PORT now"),
        ("teacher serve --tls-key x", "it is --tls ca=FILE,cert=FILE,key=FILE now"),
        ("teacher serve --rate 5", "it is --backend paced,rate=N now"),
        ("teacher serve --max-calls 5", "it is --limit calls=N now"),
        ("teacher fingerprint m --samples f", "it is --canary FILE,samples=FILE.npz now"),
        ("profile --steps 5", "it is --measure steps=N now"),
        ("coordinator serve --max-teachers 5", "it is --autoscale max=N now"),
        ("coordinator acl --fleet-password-file x", "it is --password-file fleet=FILE now"),
        ("doctor --tls-ca x", "'edl context add NAME --tls ca=FILE ...', or EDL_TLS_CA"),
        ("job submit x", "'edl job submit' is now: edl apply -f JOB.yaml"),
        ("service", "'edl service' is now: edl get|describe|scale|delete service"),
    ],
)
def test_an_old_spelling_is_named_with_the_new_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["edl", *words.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def options_of(command: Any) -> Iterator[tuple[str, Any]]:
    """The options of a command, or of all of a group, by their flags."""
    for parameter in command.params:
        for flag in parameter.opts:
            yield flag, parameter
    for one in getattr(command, "commands", {}).values():
        yield from options_of(one)


@pytest.mark.parametrize("name", sorted(cli.MOVED_OF))
def test_the_new_spelling_of_an_old_option_exists(name: str) -> None:
    group = typer.main.get_command(cli.command_line(name)).commands[name]  # type: ignore[attr-defined]
    known = list(options_of(group))
    for old, says in cli.MOVED_OF[name].items():
        for flag, words in re.findall(r"it is (--[a-z-]+) ?(.*) now", says):
            named = [getattr(one.type, "func", None) for other, one in known if other == flag]
            assert named, (old, says)
            structured = [one for one in named if isinstance(one, StructuredOption)]
            for key in re.findall(r"([a-z-]+)=", words) if structured else ():
                assert any(f"{key}=" in one.completions(key) for one in structured), (old, says)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0", ("0.0.0.0", 0)), ("7010", ("127.0.0.1", 7010)), (":7010", ("127.0.0.1", 7010)),
        ("head.example:0", ("head.example", 0)), ("::1", ("::1", 0)), ("[::1]", ("::1", 0)),
        ("[::1]:70", ("::1", 70)),
    ],
)  # fmt: skip
def test_an_address_to_listen_on(text: str, address: tuple[str, int]) -> None:
    assert ListenAddress.parse(text) == address


@pytest.mark.parametrize("text", ["", "70000", "h:x", "h:-1", "h:70000", "[::1]:x"])
def test_what_is_no_address_to_listen_on(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expects HOST, PORT or HOST:PORT"):
        ListenAddress.parse(text)
