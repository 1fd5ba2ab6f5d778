"""One child: its output, its exit code, its bounded end, and its identity."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
from pathlib import Path
from textwrap import dedent
from unittest.mock import Mock

import pytest

from edl.runtime.errors import ProcessFailed
from edl.runtime.supervise import (
    Background,
    Command,
    Identity,
    Process,
    identity_of,
    python_command,
    start,
    stop_all,
    wait_all,
)
from edl.runtime.supervise import wait_gone as wait_ended
from edl.runtime.supervise.output import LINE_BYTES, Output
from edl.tests.runtime.programs import DOCILE, STUBBORN, WAIT_S, python, ran, runs, wait_gone
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system


def test_a_flood_of_output_neither_blocks_the_child_nor_fills_memory() -> None:
    process = start(python("print('x' * 100_000); [print(i) for i in range(100_000)]"))
    assert process.wait(WAIT_S) == 0
    assert process.tail(2) == ["99998", "99999"]
    assert len(process.tail(10**6)) == 1000


def test_long_lines_are_split_even_if_they_come_at_once() -> None:
    text = [b"x" * (2 * LINE_BYTES + 1), b"", b"y" * LINE_BYTES, b"z" * (LINE_BYTES + 1)]
    lengths = [LINE_BYTES, LINE_BYTES, 1, 0, LINE_BYTES, LINE_BYTES, 1]
    for chunk in (1 << 20, 1000):
        output, data = Output("child", None), b"\n".join(text)
        lines: list[str] = []
        for at in range(0, len(data), chunk):
            lines += output.feed(data[at : at + chunk])
        assert list(map(len, [*lines, *output.close()])) == lengths


def test_a_log_that_cannot_be_closed_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Network file systems report a full disk when a file is closed."""
    path = Mock()
    path.open().close.side_effect = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    output = Output("child", path)
    output.feed(b"last")
    assert output.close() == ["last"]
    assert "the log of child may lack its end" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_all_output_is_kept_logged_and_echoed_even_if_that_fails(
    error: type[BaseException], tmp_path: Path
) -> None:
    code = r"import os, sys; os.write(2, b'err\n'); os.write(1, b'a\r\n\xff\nlast'); sys.exit(3)"
    said = ["err", "a", "\ufffd", "last"]
    lines: list[str] = []
    log = tmp_path / "logs" / "child.log"

    def echo(line: str) -> None:
        lines.append(line)
        if line == "last":
            raise error(line)

    for _ in range(2):
        process = start(python(code, log=log), echo=echo)
        assert process.wait(WAIT_S) == process.returncode == 3
        assert not process.alive
        assert process.tail() == said
    assert log.read_bytes() == b"err\na\r\n\xff\nlast" * 2
    assert lines == said * 2


def test_expect_finds_earlier_lines_and_says_how_the_child_ended() -> None:
    process = start(python("print('port 17'); print('no such model\\n'); raise SystemExit(2)"))
    for _ in range(2):
        assert process.expect(r"port (\d+)", WAIT_S)[1] == "17"
    with pytest.raises(ProcessFailed, match=r"exit code 2.*no such model") as caught:
        process.expect("ready", WAIT_S)
    assert "\n" not in str(caught.value)
    assert "port 17\nno such model" in caught.value.__notes__[0]
    assert process.last_line == "no such model", "blank lines do not count"


def test_waits_that_end_leave_the_child_alone() -> None:
    process = start(python("import time; time.sleep(60)"))
    with pytest.raises(ProcessFailed, match=r"in 0\.2 s .*printed nothing"):
        process.expect(re.compile("ready"), 0.2)
    assert process.wait(0.01) is None
    assert process.alive
    assert process.stop() == -signal.SIGTERM


def test_stop_wakes_a_suspended_child_in_a_session_of_its_own() -> None:
    process = start(python(DOCILE))
    process.expect("ready", WAIT_S)
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    process.send_signal(signal.SIGSTOP)
    assert process.stop(WAIT_S) == -signal.SIGTERM
    assert process.stop() == -signal.SIGTERM


def test_children_that_ignore_it_share_one_grace_period_and_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = [start(python(STUBBORN, 60)) for _ in range(3)]
    for process in processes:
        process.expect("ready", WAIT_S)
    waits: list[float | None] = []
    wait = Process.wait

    def note(process: Process, timeout_s: float | None = None) -> int | None:
        waits.append(timeout_s)
        return wait(process, timeout_s)

    monkeypatch.setattr(Process, "wait", note)
    stop_all(processes, grace_s=0.2)
    assert waits[1:3] == [0.0, 0.0], "the first child has used up the grace period"
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 3


@pytest.mark.parametrize("how", ["ends", "killed"])
def test_what_is_left_of_its_group_goes_with_the_child(how: str) -> None:
    code = """
        import subprocess, sys, time
        print(subprocess.Popen(["sleep", "60"]).pid)
        time.sleep(60 if sys.argv[1] == "killed" else 0)
    """
    process = start(python(code, how))
    grandchild = int(process.expect(r"^\d+$", WAIT_S)[0])
    if how == "killed":
        process.kill()
    assert process.wait(WAIT_S) == (0 if how == "ends" else -signal.SIGKILL)
    wait_gone([grandchild])


def test_output_held_open_by_a_stray_grandchild_does_not_hold_us() -> None:
    code = """
        import subprocess
        print(subprocess.Popen(["sleep", "60"], start_new_session=True).pid)
    """
    exit_code, (pid,) = ran(python(code))
    assert exit_code == 0
    stray = int(pid)
    assert runs(stray)
    os.kill(stray, signal.SIGKILL)


def test_end_is_noticed_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=PermissionError))
    code = "import os, time; print('x'); os.close(1); os.close(2); time.sleep(.1)"
    assert ran(python(code)) == (0, ["x"])


def test_a_child_reaped_by_somebody_else_counts_as_ended() -> None:
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = start(python("print('x')"))
        assert process.wait(WAIT_S) is not None
    finally:
        signal.signal(signal.SIGCHLD, former)


def test_a_signal_to_a_child_that_has_just_been_reaped_has_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start(python(DOCILE))
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", Mock(side_effect=ProcessLookupError))
        process.terminate()
    assert process.stop() == -signal.SIGTERM


def test_each_child_has_its_own_deadline_and_no_second_signal() -> None:
    stubborn, slow = start(python(STUBBORN, 60)), start(python(STUBBORN, 60))
    for process in (stubborn, slow):
        process.expect("ready", WAIT_S)
        process.terminate()
        process.expect("no", WAIT_S)
    began_s = time.monotonic()
    wait_all([(slow, began_s + 0.3), (stubborn, began_s)])
    assert time.monotonic() - began_s >= 0.3
    for process in (stubborn, slow):
        assert process.returncode == -signal.SIGKILL
        assert process.tail() == ["ready", "no"]


def test_what_keeps_a_program_from_starting_is_named(tmp_path: Path) -> None:
    for guard in (False, True):
        with pytest.raises(ProcessFailed, match=r"cannot start db: .*no-such-program"):
            start(Command("db", ("no-such-program",), guard=guard))
    with pytest.raises(ProcessFailed, match=re.escape(str(tmp_path))):
        start(Command("db", ("sleep", "60"), log=tmp_path))
    with pytest.raises(ProcessFailed, match=r"cannot start db: .*surrogates"):
        start(Command("db", ("sleep", "60"), env={"A": "\ud800"}))
    with pytest.raises(ProcessFailed, match="cannot start db: embedded null byte"):
        start(Command("db", ("sleep", "60"), cwd=Path("a\0b")))


@pytest.mark.parametrize("guard", [False, True])
def test_a_program_is_found_in_the_folder_and_on_the_path_of_the_child(
    tmp_path: Path, guard: bool
) -> None:
    program = tmp_path / "run.sh"
    program.write_text("#!/bin/sh\necho here\n")
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for command in (
        Command("a", ("./run.sh",), cwd=tmp_path, guard=guard),
        Command("a", ("run.sh",), env=path, guard=guard),
    ):
        assert ran(command) == (0, ["here"])


def test_environment_and_descriptors_reach_the_child() -> None:
    reader, writer = os.pipe()
    code = "import os, sys; os.write(int(sys.argv[1]), os.environ['COLOUR'].encode())"
    process = start(python(code, writer, env={"COLOUR": "blue"}, pass_fds=(writer,)))
    os.close(writer)
    assert process.wait(WAIT_S) == 0
    assert os.read(reader, 100) == b"blue"
    os.close(reader)


def test_an_isolated_child_gets_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except those of logs."""
    names = {"EDL_LISTEN", "EDL_DEBUG_X", "EDL_DEBUG", "EDL_LOG_FORMAT", "LISTEN"}
    for name in names:
        monkeypatch.setenv(name, "json")
    for isolated, kept in ((False, names), (True, names - {"EDL_LISTEN", "EDL_DEBUG_X"})):
        assert names & python("", isolated=isolated).environment().keys() == kept


def test_a_forked_copy_cannot_touch_the_child() -> None:
    process = start(python(DOCILE))
    process.expect("ready", WAIT_S)
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:  # as a worker of a data loader is
        process.kill()
        os.write(writer, b"dead" if process.alive else str(process.stop()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"0"
    os.close(reader)
    os.close(writer)
    assert process.alive
    assert process.stop() == -signal.SIGTERM


def test_a_process_is_known_by_its_start_and_ourselves_everybody_and_zombies_by_nothing() -> None:
    """Its name need not be text."""
    child = start(python(f"import ctypes\nctypes.CDLL(None).prctl(15, b'\\xff')\n{dedent(DOCILE)}"))
    child.expect("ready", WAIT_S)
    known = identity_of(child.pid)
    assert known is not None
    assert known == identity_of(child.pid)
    assert known.runs
    other = Identity(child.pid, f"{known.started}1")
    assert not other.runs
    assert not other.send(signal.SIGKILL)
    assert wait_ended([other], 0.0) == []
    assert wait_ended([known], 0.0) == [known]
    assert known.send(signal.SIGTERM)
    assert wait_ended([known, other], WAIT_S) == []
    assert child.wait(WAIT_S) is not None
    assert not known.send(signal.SIGTERM)
    for pid in (0, -1, os.getpid()):
        known = identity_of(pid) or Identity(pid, "")
        assert not known.send(signal.SIGTERM)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    wait_until(lambda: identity_of(pid) is None)
    os.waitpid(pid, 0)


def test_the_end_of_one_in_the_background_is_known_until_it_is_left(tmp_path: Path) -> None:
    words = (sys.executable, "-P", "-c", "raise SystemExit(3)")
    background = Background(Command("b", words, log=tmp_path / "log"))
    assert background.wait(WAIT_S) == 3
    background.leave()
    with pytest.raises(ProcessFailed, match=r"cannot start b: No such file.*: .*gone"):
        Background(python_command("b", "edl", log=tmp_path / "gone" / "log"))
    with pytest.raises(ProcessFailed, match="cannot start b: embedded null byte"):
        Background(Command("b", ("a\0b",), log=tmp_path / "log"))
