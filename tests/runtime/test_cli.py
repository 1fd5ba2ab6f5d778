"""The command `edl` itself: its overview, its completion, and options that moved."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edl import cli
from edl.coordinator.contexts import ContextFile, Contexts, MeshContext
from edl.tests.cli_output import output_of


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
    ContextFile(tmp_path / "c").write(contexts.add("prod", MeshContext()))
    monkeypatch.setenv("EDL_CONFIG", str(tmp_path / "c"))
    monkeypatch.setenv("_EDL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setattr(sys, "argv", ["edl"])
    with pytest.raises(SystemExit):
        cli.main()
    assert set(capsys.readouterr().out.split()) == offered


def test_an_option_that_moved_is_named_with_its_successor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["edl", "status", "--token-file", "x"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "'edl context add NAME --token-file FILE ...', or EDL_TOKEN_FILE" in (
        capsys.readouterr().err
    )
