"""One child: its output, its exit code, and its bounded end."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from edl.errors import ProcessFailed
from edl.supervise import Command, Process, python_command, start, stop_all

from .programs import DOCILE, STUBBORN, WAIT_S, python, runs, wait_for, wait_gone


def test_the_exit_code_and_all_output_are_kept() -> None:
    process = start(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert process.wait(WAIT_S) == 3
    assert process.returncode == 3
    assert not process.alive
    assert process.tail() == ["out", "err"]


def test_a_last_line_without_an_end_and_bytes_that_are_no_text_are_kept() -> None:
    process = start(python(r"import os; os.write(1, b'a\r\n\xff\nlast')"))
    process.wait(WAIT_S)
    assert process.tail() == ["a", "\ufffd", "last"]


def test_a_flood_of_output_neither_blocks_the_child_nor_fills_memory() -> None:
    process = start(python("print('x' * 100_000); [print(i) for i in range(100_000)]"))
    assert process.wait(WAIT_S) == 0
    assert process.tail(2) == ["99998", "99999"]
    assert len(process.tail(10**6)) == 1000


def test_output_goes_to_the_log_file_and_to_the_echo(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "logs" / "child.log"
    for _ in range(2):
        start(python("print('hello')", log=log), echo=lines.append).wait(WAIT_S)
    assert log.read_text() == "hello\nhello\n"
    assert lines == ["hello", "hello"]


def test_an_echo_that_fails_does_not_disturb_the_child() -> None:
    def fail(line: str) -> None:
        raise ValueError(line)

    process = start(python("print(1); print(2)"), echo=fail)
    assert process.wait(WAIT_S) == 0
    assert process.tail() == ["1", "2"]


def test_expect_finds_lines_of_the_past_and_of_the_future() -> None:
    process = start(python("print('port 17'); input_ = __import__('time').sleep(60)"))
    for _ in range(2):
        match = process.expect(r"port (\d+)", WAIT_S)
        assert match[1] == "17"
    process.stop()


def test_expect_says_how_the_child_ended_and_what_it_said_last() -> None:
    process = start(python("print('first'); print('no such model'); raise SystemExit(2)"))
    with pytest.raises(ProcessFailed, match=r"exit code 2.*no such model") as caught:
        process.expect("ready", WAIT_S)
    assert "\n" not in str(caught.value)
    assert "first\nno such model" in caught.value.__notes__[0]


def test_expect_ends_when_its_time_is_over() -> None:
    process = start(python("import time; time.sleep(60)"))
    began = time.monotonic()
    with pytest.raises(ProcessFailed, match=r"in 0\.2 s .*printed nothing"):
        process.expect(re.compile("ready"), 0.2)
    assert time.monotonic() - began < WAIT_S / 2
    process.stop()


def test_wait_with_a_limit_leaves_the_child_alone() -> None:
    process = start(python("import time; time.sleep(60)"))
    assert process.wait(0.01) is None
    assert process.alive
    assert process.stop() == -signal.SIGTERM


def test_a_child_stands_in_a_session_of_its_own() -> None:
    process = start(python("import os; print(os.getsid(0), os.getpgrp(), os.getpid())"))
    process.wait(WAIT_S)
    assert process.tail() == [f"{process.pid} {process.pid} {process.pid}"]


def test_stop_lets_the_child_end_in_order() -> None:
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("ready")
        time.sleep(60)
    """
    process = start(python(code))
    process.expect("ready", WAIT_S)
    assert process.stop() == 0
    assert process.stop() == 0


def test_stop_wakes_a_suspended_child() -> None:
    process = start(python(DOCILE))
    process.expect("ready", WAIT_S)
    process.send_signal(signal.SIGSTOP)
    assert process.stop(WAIT_S) == -signal.SIGTERM


def test_stop_kills_a_child_that_ignores_it() -> None:
    process = start(python(STUBBORN, 60))
    process.expect("ready", WAIT_S)
    assert process.stop(grace_s=0.05) == -signal.SIGKILL


@pytest.mark.serial
def test_several_children_share_one_grace_period() -> None:
    processes = [start(python(STUBBORN, 60)) for _ in range(3)]
    for process in processes:
        process.expect("ready", WAIT_S)
    began = time.monotonic()
    stop_all(processes, grace_s=0.5)
    assert time.monotonic() - began < 1.4
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
    process = start(python(code))
    assert process.wait(WAIT_S) == 0
    stray = int(process.tail()[0])
    assert runs(stray)
    os.kill(stray, signal.SIGKILL)


def test_without_pidfd_the_end_is_noticed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError(pid)

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = start(python("import os, time; print('x'); os.close(1); os.close(2); time.sleep(.1)"))
    assert process.wait(WAIT_S) == 0
    assert process.tail() == ["x"]


def test_a_child_reaped_by_somebody_else_counts_as_ended() -> None:
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = start(python("print('x')"))
        assert process.wait(WAIT_S) is not None
    finally:
        signal.signal(signal.SIGCHLD, former)


@pytest.mark.parametrize("guard", [False, True])
def test_a_program_that_is_not_there_is_named(guard: bool) -> None:
    with pytest.raises(ProcessFailed, match=r"cannot start db: .*no-such-program"):
        start(Command("db", ("no-such-program",), guard=guard))


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match=re.escape(str(tmp_path))):
        start(Command("db", ("sleep", "60"), log=tmp_path))


def test_environment_and_descriptors_reach_the_child() -> None:
    reader, writer = os.pipe()
    code = "import os, sys; os.write(int(sys.argv[1]), os.environ['COLOUR'].encode())"
    process = start(python(code, writer, env={"COLOUR": "blue"}, pass_fds=(writer,)))
    os.close(writer)
    assert process.wait(WAIT_S) == 0
    assert os.read(reader, 100) == b"blue"
    os.close(reader)


def test_python_command_runs_a_module_with_this_interpreter() -> None:
    command = python_command("version", "platform", "--terse", cwd=Path("/"))
    assert command.argv[0] == sys.executable
    process = start(command)
    assert process.wait(WAIT_S) == 0
    assert "Linux" in process.tail()[0]


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


def test_repr_says_how_it_is() -> None:
    process = start(python("import os; os.kill(os.getpid(), 35)", name="teacher-1"))
    process.wait(WAIT_S)
    assert repr(process) == f"<Process teacher-1 pid {process.pid}: ended by signal 35>"


def test_many_children_come_and_go_at_once() -> None:
    processes: list[Process] = [start(Command(f"sleep-{i}", ("sleep", "60"))) for i in range(20)]
    wait_for(lambda: all(runs(process.pid) for process in processes))
    stop_all(processes)
    assert {process.returncode for process in processes} == {-signal.SIGTERM}
