"""What a node says of its job."""

from __future__ import annotations

import pytest

from edl.scheduler.students.ladder import Failure
from edl.student.show.plain import Plain
from edl.student.supervisor.telling import Teller


@pytest.mark.parametrize("usage", [False, True])
def test_what_the_command_ends_with_is_not_said_before(usage: bool) -> None:
    said: list[str] = []
    Teller(Plain(said.append)).failed(
        Failure(1, "a", 0, step=5, error="no such option", usage=usage)
    )
    expected = "rank 0 on node a crashed on step 5 of epoch 0: no such option"
    assert said == ([] if usage else [expected])
