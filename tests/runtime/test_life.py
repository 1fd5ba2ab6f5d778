"""A child ends with its parent, whatever its own program does about signals."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from edl.runtime.supervise import Command, Process, start
from edl.runtime.supervise.life import drop_fd_on_fork, end_with_parent
from edl.tests.runtime.programs import DOCILE, STUBBORN, WAIT_S, python, ran, runs, wait_gone
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system

#: A parent that starts what it is told to, says their ids, and waits for its death.
PARENT = """
    import sys, time
    from edl.runtime.standard_streams import write_whole_lines
    from edl.runtime.supervise import Command, start
    write_whole_lines()
    guard, grace_s, *argv = sys.argv[1:]
    command = Command("inner", tuple(argv), guard=bool(int(guard)), orphan_grace_s=float(grace_s))
    child = start(command, echo=print)
    print("child", child.pid)
    child.wait()
    print("exit", child.returncode)
"""
SHELL = ("sh", "-c", "echo program $$; trap '' TERM; sleep 60 & wait; sleep 60")


def parent_of(*argv: str, guard: bool = False, grace_s: float = 10.0) -> tuple[Process, int]:
    parent = start(python(PARENT, int(guard), grace_s, *argv, name="parent"))
    return parent, int(parent.expect(r"^child (\d+)", WAIT_S)[1])


def inner(code: str, *args: object) -> tuple[str, ...]:
    return python(code, *args).argv


#: `pause` is called with the interpreter's lock held: no thread can run, only the kernel kills it.
HANGING = """
    import ctypes, signal
    from edl.runtime.supervise import end_with_parent
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(at_once=True)
    print("ready", flush=True)
    ctypes.PyDLL(None).pause()
"""


@pytest.mark.parametrize(
    ("argv", "guard"),
    [
        pytest.param(inner(DOCILE), False, id="docile"),
        pytest.param(inner(STUBBORN, 0.3), False, id="ignores SIGTERM"),
        pytest.param(inner(HANGING), False, id="hangs"),
        pytest.param(("sh", "-c", "echo ready; exec sleep 60"), True, id="guarded"),
        pytest.param(SHELL, True, id="guarded, ignores SIGTERM"),
        # As `bash train.sh` does, which ends by SIGTERM while its program goes on.
        pytest.param(
            ("sh", "-c", "sleep 60 & echo program $!; wait"), True, id="guarded, leaves a program"
        ),
    ],
)
def test_a_killed_parent_takes_its_child_along(argv: tuple[str, ...], guard: bool) -> None:
    parent, child = parent_of(*argv, guard=guard, grace_s=0.3)
    # A guard has started, too, before its program does.
    said = parent.expect(r"^(?:ready|program (\d+))", WAIT_S)
    parent.send_signal(signal.SIGKILL)
    wait_gone([child, int(said[1])] if said[1] else [child])


@pytest.mark.parametrize("guard", [False, True])
def test_a_killed_parent_takes_a_suspended_child_along(guard: bool) -> None:
    argv = ("sh", "-c", "echo ready; exec sleep 60") if guard else inner(DOCILE)
    parent, child = parent_of(*argv, guard=guard, grace_s=0.3)
    parent.expect("^ready", WAIT_S)
    os.kill(child, signal.SIGSTOP)
    parent.send_signal(signal.SIGKILL)
    wait_gone([child])


def test_a_guarded_program_dies_when_only_its_guard_is_killed() -> None:
    guard = start(Command("db", SHELL, guard=True))
    program = int(guard.expect(r"^program (\d+)", WAIT_S)[1])
    assert runs(program)
    guard.send_signal(signal.SIGKILL)
    assert guard.wait(WAIT_S) == -signal.SIGKILL
    wait_gone([program])


def test_a_guard_ends_as_its_program_ends() -> None:
    assert start(Command("a", ("sh", "-c", "exit 7"), guard=True)).wait(WAIT_S) == 7
    script = "trap 'echo bye; kill -USR1 $$' TERM; echo ready; while :; do sleep 0.05; done"
    process = start(Command("db", ("sh", "-c", script), guard=True))
    process.expect("ready", WAIT_S)
    assert process.stop(WAIT_S) == -signal.SIGUSR1
    assert "bye" in process.tail()


def test_a_guarded_program_sees_nothing_of_the_guard() -> None:
    script = "echo var=$EDL_LIFE_FD; ls -l /proc/$$/fd; trap - PIPE; kill -PIPE $$"
    process = start(Command("db", ("sh", "-c", script), guard=True))
    assert process.wait(WAIT_S) == -signal.SIGPIPE
    assert process.tail(100)[0] == "var="
    targets = [line.rpartition(" -> ")[2] for line in process.tail(100) if " -> " in line]
    assert len({target for target in targets if target.startswith("pipe:")}) == 1  # its output


SLEEPING_SHELL = Command("shell", ("sh", "-c", "echo ready; exec sleep 60"), guard=True)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(python(DOCILE), signal.SIGINT, id="SIGINT"),
        pytest.param(SLEEPING_SHELL, signal.SIGINT, id="guarded, SIGINT"),
        pytest.param(SLEEPING_SHELL, signal.SIGHUP, id="guarded, SIGHUP"),
    ],
)
def test_a_child_handles_a_signal_that_its_parent_ignores(
    command: Command, number: signal.Signals
) -> None:
    """A child has a session of its own, so a signal that reaches it is meant for it."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        child = start(command)
    finally:
        signal.signal(number, before)
    child.expect("ready", WAIT_S)
    child.send_signal(number)
    assert child.wait(WAIT_S) == -number


def test_a_program_without_the_pipe_of_a_parent_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDL_LIFE_FD", raising=False)
    assert not end_with_parent()
    with open(os.devnull) as file:
        for fd in (file.fileno(), 9999):  # the variable was passed on, the pipe was not
            monkeypatch.setenv("EDL_LIFE_FD", str(fd))
            assert not end_with_parent()
            assert "EDL_LIFE_FD" not in os.environ


def test_forked_workers_do_not_keep_the_children_of_a_dead_parent_alive() -> None:
    code = """
        import os, sys, time
        from edl.runtime.supervise import Command, start
        child = start(Command("inner", ("sleep", "60"), guard=True))
        worker = os.fork()  # as a data loader does
        if worker == 0:
            os.setsid()  # so that it outlives its parent
            time.sleep(60)
        print("ids", child.pid, worker)
        time.sleep(60)
    """
    parent = start(python(code))
    child, worker = map(int, parent.expect(r"^ids (\d+) (\d+)", WAIT_S).groups())
    wait_until(lambda: os.getsid(worker) == worker)
    parent.kill()
    wait_gone([child])
    assert runs(worker)
    os.kill(worker, signal.SIGKILL)


def test_a_forked_process_loses_owned_descriptors_and_no_others() -> None:
    lost, reused, other, result = (os.pipe() for _ in range(4))
    drop_fd_on_fork(lost[1])
    drop_fd_on_fork(reused[1])
    os.dup2(other[1], reused[1])  # the number was closed and given away
    if (pid := os.fork()) == 0:
        try:
            os.write(lost[1], b"x")  # goes to the null device
            os.write(reused[1], b"y")
            os.write(result[1], b"done")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(lost[1])
    assert (os.read(lost[0], 1), os.read(other[0], 1), os.read(result[0], 4)) == (
        b"",
        b"y",
        b"done",
    )
    for fd in (lost[0], *reused, *other, *result):
        os.close(fd)


def test_the_guard_names_a_program_that_cannot_run() -> None:
    argv = (sys.executable, "-P", "-m", "edl.runtime.supervise", "1", "no-such-program")
    said = "cannot run no-such-program: No such file or directory"
    assert ran(Command("guard", argv)) == (127, [said])
