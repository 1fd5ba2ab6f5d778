"""Who a number of a process means, and that nobody else gets its signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from edl.errors import ProcessFailed
from edl.supervise import (
    Background,
    Command,
    Identity,
    identity_of,
    python_command,
    start,
    wait_gone,
)
from edl.tests.ground.programs import DOCILE, WAIT_S, python, wait_for


def test_a_process_is_known_by_its_start() -> None:
    child = start(python(DOCILE))
    child.expect("ready", WAIT_S)
    known = identity_of(child.pid)
    assert known is not None
    assert known == identity_of(child.pid)
    assert known.runs
    other = Identity(child.pid, f"{known.started}1")
    assert not other.runs
    assert not other.send(signal.SIGKILL)
    assert wait_gone([other], 0.0) == []
    assert wait_gone([known], 0.0) == [known]
    assert known.send(signal.SIGTERM)
    assert wait_gone([known, other], WAIT_S) == []
    assert child.wait(WAIT_S) is not None
    assert not known.send(signal.SIGTERM)


def test_no_number_means_ourselves_or_everybody() -> None:
    for pid in (0, -1, os.getpid()):
        known = identity_of(pid) or Identity(pid, "")
        assert not known.send(signal.SIGTERM)


def test_a_zombie_is_nobody() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    wait_for(lambda: identity_of(pid) is None)
    os.waitpid(pid, 0)


def test_what_goes_to_the_background_outlives_who_started_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    inner = f"python_command('b', 'edl', '--version', log=Path({str(log)!r}))"
    code = f"""
        from pathlib import Path
        from edl.supervise import Background, end_with_parent, python_command
        end_with_parent()
        Background({inner}).leave()
    """
    parent = start(python(code))
    assert parent.wait(WAIT_S) == 0, parent.tail()
    wait_for(lambda: log.read_text().startswith("edl-dist "))


def test_the_end_of_one_in_the_background_is_known_until_it_is_left(tmp_path: Path) -> None:
    words = (sys.executable, "-P", "-c", "raise SystemExit(3)")
    background = Background(Command("b", words, log=tmp_path / "log"))
    assert background.wait(WAIT_S) == 3
    background.leave()
    with pytest.raises(ProcessFailed, match=r"cannot start b: No such file.*: .*gone"):
        Background(python_command("b", "edl", log=tmp_path / "gone" / "log"))
