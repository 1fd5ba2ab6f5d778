"""`edl status` of trainings: the timeline, the ranks, who straggles."""

from __future__ import annotations

import io

from rich.console import Console

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.coordinator.ops.jobs_view import JobState, read_jobs, render, to_json


def board() -> MemoryBoard:
    board = MemoryBoard()
    board.join("digits", "a", {"host": "10.0.0.1", "phase": "running", "says": ""}, 5.0)
    board.join("digits", "b", {"host": "10.0.0.2", "phase": "waiting"}, 5.0)
    board.lead("digits", "a", 5.0)
    board.publish("digits", "a", 1, {})
    for number, ranks in ((1, 2), (2, 3)):
        told = {"generation": number, "ranks": ranks, "nodes": ["a", "b"], "restored": 9 * number}
        board.note("digits", {"kind": "generation", "why": f"reason {number}", **told})
        board.note("digits", {"kind": "stepping", "generation": number, "after_s": 5.5})
    for rank, row_s in enumerate((0.001, 0.004, 0.001)):
        facts = {"node": "a", "step": 40 + rank, "steps": 90, "row_s": [row_s] * 5, "step_s": 0.01}
        board.report("digits", 1, rank, facts)
    return board


def shown(state: JobState, most_ranks: int = 0) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(render(state, most_ranks))
    return out.getvalue()


def test_the_timeline_the_ranks_and_the_straggler() -> None:
    (state,) = read_jobs(board())
    assert (state.state, state.step, state.steps, state.straggler) == ("training", 42, 90, 1)
    text = shown(state)
    assert "job digits  training  step 42 of 90" in text
    assert "ranks by generation: 2 -> 3" in text
    assert "+5.5 s" in text
    assert "reason 2" in text
    assert "nodes without ranks: b" in text
    (slow,) = [line for line in text.splitlines() if "straggler" in line]
    assert slow.split()[:3] == ["1", "a", "41"]
    assert "straggler" in shown(state, most_ranks=1)  # who needs a look comes first
    assert len(shown(state, most_ranks=1).splitlines()) == len(text.splitlines()) - 2


def test_brackets_in_what_an_error_said_are_shown() -> None:
    jobs = board()
    told = {"generation": 3, "ranks": 2, "nodes": ["a"], "restored": 27}
    jobs.note("digits", {"kind": "generation", "why": "ValueError: [x] is no [/y]", **told})
    assert "ValueError: [x] is no [/y]" in shown(read_jobs(jobs)[0])


def test_the_json() -> None:
    told = to_json(read_jobs(board())[0])
    assert [one["ranks"] for one in told["generations"]] == [2, 3]
    assert told["generations"][1]["first_step_after_s"] == 5.5
    assert [one["rank"] for one in told["ranks"]] == [0, 1, 2]
    assert [one["node"] for one in told["nodes"]] == ["a", "b"]
    assert (told["straggler"], told["outcome"]) == (1, None)


def test_a_job_that_has_ended() -> None:
    full = board()
    full.finish("digits", {"kind": "failed", "report": "step 7 failed 3 times"})
    (state,) = read_jobs(full)
    assert state.state == "failed"
    assert "step 7 failed 3 times" in shown(state)
