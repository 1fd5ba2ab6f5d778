"""What the demo says where there is no terminal, and at one."""

from __future__ import annotations

import io

from rich.console import Console

from edl.mesh.demo.progress import open_display


def show(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with open_display(console) as display:
        with display.stage("Train", 8) as stage:
            for done in range(1, 9):
                stage.note(f"n{done}")
                stage.reach(done)
            display.say("somebody died")
        with display.stage("Load", 1) as stage:
            stage.reach(0, 4)
            stage.reach(4)
    return out.getvalue()


def test_plain_output_is_a_few_whole_lines() -> None:
    assert show(terminal=False).splitlines() == [
        "Train ...",
        "Train: 2/8  n2",
        "Train: 4/8  n4",
        "Train: 6/8  n6",
        "Train: 8/8  n8",
        "somebody died",
        "Load ...",
        "Load: 4/4",
    ]


def test_at_a_terminal_there_is_a_bar_for_each_stage() -> None:
    text = show(terminal=True)
    assert "━" in text
    assert "8/8" in text
    assert "4/4" in text
    assert "somebody died" in text
