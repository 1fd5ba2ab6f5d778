"""Child processes: commands, output, exit codes, and ways to end them in bounded time."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ..errors import ProcessFailed
from ..standard_streams import open_standard_fds
from .identity import open_pidfd
from .life import LIFE_VARIABLE, drop_fd_on_fork, life_fd
from .output import Output

log = logging.getLogger(__name__)

#: Seconds within which a child ends after SIGKILL, unless it hangs in a device driver.
KILL_S = 5.0
#: Longest time between calls of the `check` of `Process.expect`, in seconds.
CHECK_S = 0.1
#: Milliseconds between checks for the child's end without pidfds (before Linux 5.3).
_POLL_MS = 50
#: Milliseconds between checks with pidfds, as a notification may be missed.
_POLL_WITH_PIDFD_MS = 1000
_READ_BYTES = 1 << 16
_EXIT_UNKNOWN: Final = 1
#: Variables that an isolated child does not inherit.
_SETTING: Final = re.compile("EDL_(?!LOG_|DEBUG$)")


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start as a child.

    Attributes:
        name: its name in messages and names of threads.
        argv: program and arguments; a program without a slash is looked up on PATH.
        env: environment variables, added to those of this process.
        isolated: it inherits no EDL_* variables, as these are settings of the user's mesh; except
            EDL_DEBUG and those of logs.
        cwd: working directory; None: that of this process.
        log: file to which all output is appended; a tail is also kept in memory.
        pass_fds: descriptors that it inherits, with the same numbers.
        guard: run it under a guard, because it does not call `end_with_parent()` itself.
        orphan_grace_s: seconds from SIGTERM to SIGKILL for a guarded program whose parent has died.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    isolated: bool = False
    cwd: Path | None = None
    log: Path | None = None
    pass_fds: tuple[int, ...] = ()
    guard: bool = False
    orphan_grace_s: float = 10.0

    def arguments(self) -> list[str]:
        """Return the executed arguments, including those of the guard."""
        if not self.guard:
            return list(self.argv)
        guard = [sys.executable, "-P", "-m", "edl.runtime.supervise", str(self.orphan_grace_s)]
        return [*guard, *self.argv]

    def environment(self) -> dict[str, str]:
        """Return the inherited variables and `env`."""
        inherited = dict(os.environ)
        if self.isolated:
            inherited = {name: inherited[name] for name in inherited if not _SETTING.match(name)}
        return {**inherited, **self.env}


def python_command(name: str, module: str, *args: object, **options: Any) -> Command:
    """Create a Command for `python -m module args...` with this interpreter.

    `-P` keeps the working directory off the module path. `-u` makes output unbuffered, so that the
    last lines of a killed child are not lost. `options` are fields of Command.
    """
    argv = (sys.executable, "-P", "-u", "-m", module, *(str(arg) for arg in args))
    return Command(name, argv, **options)


def start(command: Command, *, echo: Callable[[str], None] | None = None) -> Process:
    """Start `command` as a child in its own session.

    Args:
        command: the program.
        echo: called with each line of its output, in the thread that watches this child.

    Raises:
        ProcessFailed: the program cannot be executed, its log cannot be written, or no thread can
            be started to watch it.
    """
    if command.guard and not _has_program(command):
        raise ProcessFailed(f"cannot start {command.name}: there is no program {command.argv[0]!r}")
    fd = life_fd()
    with contextlib.ExitStack() as undo:
        try:
            output = Output(command.name, command.log)
            undo.callback(output.close)
            popen = _popen(
                command,
                stdout=subprocess.PIPE,
                env={**command.environment(), LIFE_VARIABLE: str(fd)},
                pass_fds=(fd, *command.pass_fds),
            )
        except (OSError, ValueError) as error:
            raise _not_started(command, error) from error
        try:
            process = Process(command.name, popen, output, echo)
        except BaseException as error:  # no thread could be started, or Ctrl-C
            popen.kill()
            popen.communicate()
            if isinstance(error, RuntimeError):
                raise ProcessFailed(f"cannot watch {command.name}: {error}") from error
            raise
        undo.pop_all()
    return process


def _popen(command: Command, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.arguments(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        cwd=command.cwd,
        start_new_session=True,
        **options,
    )


def _not_started(command: Command, error: OSError | ValueError) -> ProcessFailed:
    """Return the error for a failed start.

    A ValueError comes from an argument with a NUL character, or with text that is not Unicode.
    """
    reason = str(error)
    if isinstance(error, OSError) and error.filename:
        reason = f"{error.strerror}: {error.filename}"
    return ProcessFailed(f"cannot start {command.name}: {reason}")


def _has_program(command: Command) -> bool:
    """Return whether the guard will find the program, in the child's folder and PATH."""
    program = command.argv[0]
    if os.path.dirname(program) and command.cwd is not None:
        program = os.path.join(command.cwd, program)
    return shutil.which(program, path=command.env.get("PATH")) is not None


class Process:
    """A child that `start` created. Any thread may call its methods.

    A thread reaps the child as soon as it ends, and kills the rest of its process group. In a
    forked process, the copy of this object counts as ended and does nothing.

    Attributes:
        name: name of its command.
        pid: its process id, and the id of its process group.
    """

    def __init__(
        self,
        name: str,
        popen: subprocess.Popen[bytes],
        output: Output,
        echo: Callable[[str], None] | None,
    ) -> None:
        self.name = name
        self.pid = popen.pid
        self._popen = popen
        self._output = output
        self._echo = echo
        self._changed = threading.Condition()
        self._returncode: int | None = None
        _running.add(self)
        threading.Thread(target=self._watch, name=f"edl-watch-{name}", daemon=True).start()

    def __repr__(self) -> str:
        state = "running" if self.alive else describe_exit(self._returncode or 0)
        return f"<Process {self.name} pid {self.pid}: {state}>"

    @property
    def alive(self) -> bool:
        """Whether the child runs, or its output is not complete yet."""
        return self._returncode is None

    @property
    def returncode(self) -> int | None:
        """Exit code, -N after signal N; None while `alive`."""
        return self._returncode

    def tail(self, n: int = 20) -> list[str]:
        """Return the last `n` lines of output; at most `TAIL_LINES` are kept."""
        with self._changed:
            return self._output.since(max(0, self._output.count - n))

    @property
    def last_line(self) -> str:
        """The last non-blank line among the last 20 lines of output; empty: there is none."""
        return next((line.strip() for line in reversed(self.tail()) if line.strip()), "")

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the child ends; return its exit code, or None after `timeout_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._returncode is not None, timeout_s)
            return self._returncode

    def expect(
        self,
        pattern: str | re.Pattern[str],
        timeout_s: float,
        check: Callable[[], object] | None = None,
    ) -> re.Match[str]:
        """Wait for a line of output that matches `pattern`; earlier lines count, too.

        Args:
            pattern: regular expression of the line.
            timeout_s: seconds to wait.
            check: called at least every 0.1 s; an exception from it ends the wait.

        Raises:
            ProcessFailed: the child ended, or `timeout_s` passed, without such a line. The message
                has the last line of output; a note of the exception has the last 20 lines.
        """
        regex = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        seen = 0
        while True:
            if check is not None:
                check()
            with self._changed:
                for line in self._output.since(seen):
                    if match := regex.search(line):
                        return match
                seen = self._output.count
                if self._returncode is not None:
                    raise self._failed(describe_exit(self._returncode), regex)
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise self._failed(f"printed no such line within {timeout_s:g} s", regex)
                self._changed.wait(left_s if check is None else min(left_s, CHECK_S))

    def send_signal(self, number: int) -> None:
        """Send a signal to the child, not its group; without effect after its end."""
        with self._changed:  # held: the child is not reaped, so its id is not reused
            if self._returncode is None:
                # Other code of this process may have reaped the child: see `_state`.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, and SIGCONT, because a suspended child cannot handle SIGTERM."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)

    def stop(self, grace_s: float = 5.0) -> int:
        """Send SIGTERM to the child and, if it runs after `grace_s`, SIGKILL to its group.

        Returns:
            The exit code, -N after signal N.

        Raises:
            ProcessFailed: the child has not ended 5 s after SIGKILL.
        """
        stop_all([self], grace_s)
        return self._returncode or 0

    def kill(self) -> None:
        """Send SIGKILL to the whole process group without waiting for the end."""
        with self._changed:
            if self._returncode is None:
                _kill_group(self.pid)

    def _failed(self, what: str, regex: re.Pattern[str]) -> ProcessFailed:
        lines = self._output.since(max(0, self._output.count - 20))
        last = f"; its last line: {self.last_line}" if self.last_line else "; it printed nothing"
        error = ProcessFailed(f"{self.name} {what} (waited for {regex.pattern!r}){last}")
        error.add_note(f"output of {self.name}:\n" + "\n".join(lines))
        return error

    def _watch(self) -> None:
        pipe = self._popen.stdout
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        drop_fd_on_fork(pipe.fileno())
        poller = select.poll()
        poller.register(pipe.fileno(), select.POLLIN)
        with open_pidfd(self.pid) as pidfd, pipe:
            if pidfd is not None:
                poller.register(pidfd, select.POLLIN)
            interval_ms = _POLL_MS if pidfd is None else _POLL_WITH_PIDFD_MS
            while (state := _state(self.pid)) == "running":
                for fd, _ in poller.poll(interval_ms):
                    if fd != pidfd and self._read(fd) == b"":
                        poller.unregister(fd)
            if state == "zombie":  # not reaped yet, so no other group can have its id
                _kill_group(self.pid)
            for _ in range(16):  # the rest; bounded, as processes outside the group may still write
                if not self._read(pipe.fileno()):
                    break
            self._finish()

    def _read(self, fd: int) -> bytes | None:
        """Read output; return b"" at the end of file, None if there is nothing to read now."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return None
        with self._changed:
            lines = self._output.feed(data)
            self._changed.notify_all()
        self._call_echo(lines)
        return data

    def _finish(self) -> None:
        with self._changed:
            lines = self._output.close()
        self._call_echo(lines)
        with self._changed:
            self._returncode = self._popen.wait()
            self._changed.notify_all()
        _running.discard(self)

    def _call_echo(self, lines: list[str]) -> None:
        """Call `echo` with each line; stop calling it after it has raised an exception."""
        if self._echo is None:
            return
        try:
            for line in lines:
                self._echo(line)
        except (Exception, SystemExit):  # without this thread, the child would never count as ended
            log.exception("output of %s is no longer passed on: the callback failed", self.name)
            self._echo = None

    def _mark_ended(self) -> None:
        """Mark this copy in a forked process as ended: the forked process has no such child."""
        self._changed = threading.Condition()  # the old lock may have been held during the fork
        self._popen.returncode = self._returncode = self._returncode or 0


def stop_all(processes: Iterable[Process], grace_s: float = 5.0) -> None:
    """End several children: SIGTERM to all, and SIGKILL to those that run after `grace_s` seconds.

    Raises:
        ProcessFailed: some have not ended 5 s after SIGKILL; the others have ended.
    """
    children = list(processes)
    for process in children:
        process.terminate()
    deadline = time.monotonic() + grace_s
    wait_all((process, deadline) for process in children)


def wait_all(deadlines: Iterable[tuple[Process, float]]) -> None:
    """Wait for children that got SIGTERM; send SIGKILL to each that misses its deadline.

    Args:
        deadlines: the children, each with its deadline in seconds of the monotonic clock.

    Raises:
        ProcessFailed: see `stop_all`.
    """
    late = []
    for process, deadline in sorted(deadlines, key=lambda pair: pair[1]):
        if process.wait(max(0.0, deadline - time.monotonic())) is None:
            process.kill()
            late.append(process)
    deadline = time.monotonic() + KILL_S
    stuck = [p for p in late if p.wait(max(0.0, deadline - time.monotonic())) is None]
    if stuck:
        names = ", ".join(f"{process.name} (pid {process.pid})" for process in stuck)
        raise ProcessFailed(f"still running after SIGKILL: {names}")


def describe_exit(returncode: int) -> str:
    """Describe in words how a process ended."""
    if returncode < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"ended by {names.get(-returncode, f'signal {-returncode}')}"
    return f"ended with exit code {returncode}"


def _state(pid: int) -> Literal["running", "zombie", "reaped"]:
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # SIGCHLD is ignored, or other code of this process reaped the child
        return "reaped"
    return "running" if ended is None else "zombie"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group has ended
        os.killpg(pid, signal.SIGKILL)


class Background:
    """A process that does not end with its parent, for commands that run in the background.

    It has its own session, writes its output to a file, and inherits no life pipe (see `life.py`).
    Children that it starts by `runtime.supervise` end with it, as usual.

    Args:
        command: the program; it must have a `log`.

    Raises:
        ProcessFailed: the program cannot be executed, or its log cannot be written.
    """

    def __init__(self, command: Command) -> None:
        assert command.log is not None, "a background process needs a log file for its output"
        open_standard_fds()
        environment = command.environment()
        environment.pop(LIFE_VARIABLE, None)
        try:
            with command.log.open("ab", buffering=0) as output:
                self._popen = _popen(command, stdout=output, env=environment)
        except (OSError, ValueError) as error:
            raise _not_started(command, error) from error
        self.pid = self._popen.pid

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code (-N after signal N), or None after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout_s)
        return None

    def leave(self) -> None:
        """Let the child outlive this process without a warning from Python."""
        if self._popen.poll() is None:
            self._popen.returncode = _EXIT_UNKNOWN  # else Popen warns when it is garbage-collected


#: Running children; a forked copy of this process marks them as ended.
_running: weakref.WeakSet[Process] = weakref.WeakSet()


def _mark_children_ended_after_fork() -> None:
    for process in list(_running):
        process._mark_ended()
    _running.clear()


os.register_at_fork(after_in_child=_mark_children_ended_after_fork)
