"""The processes of one node: they are heard while what they asked waits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edl.student.settings import TrainSettings
from edl.student.supervisor.crew import Crew
from edl.student.words import Ask, FromRank, Order, Progress
from edl.tests.student.supervisor.fleet import STAND_IN
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system


class Asked:
    """Answers no lease before it is let, and then raises what it was given."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def answer(self, rank: int, ask: Ask, alive: Callable[[], bool]) -> Any:
        if ask.what == "lease":
            self.may.wait()
            raise ValueError("no answer to that")
        return None


@contextmanager
def crew_of_one(folder: Path, asked: Asked) -> Iterator[Crew]:
    spec = folder / "job.json"
    spec.write_text(json.dumps({"rows": 8}))
    settings = TrainSettings(str(spec), "job", epochs=1, total_batch=4)
    order = Order(settings, local_rank=1, endpoints=("127.0.0.1:1",))
    crew = Crew([order], asked, lambda rank, line: None, STAND_IN)
    try:
        yield crew
    finally:
        asked.may.set()
        crew.close()


def test_a_rank_is_heard_while_its_question_waits_and_ends_where_there_is_no_answer(
    tmp_path: Path,
) -> None:
    asked, said = Asked(), list[FromRank | int]()

    def waits() -> bool:
        said.extend(word for _, word in crew.news(0.05))
        return any(isinstance(word, Progress) and word.waiting_for for word in said)

    with crew_of_one(tmp_path, asked) as crew:
        wait_until(waits)
        asked.may.set()
        wait_until(lambda: bool(crew.news(0.05)) and not crew.running)
        assert "SIGKILL" in crew.ranks[0].ending()
