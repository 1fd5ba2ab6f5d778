"""Runs the session of a page in a real shell, in an empty folder, and ends its processes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil

from edl.runtime.errors import ProcessFailed
from edl.runtime.supervise import Command, start
from edl.runtime.supervise.life import LIFE_VARIABLE
from edl.tests.coordinator.conftest import held_port
from edl.tests.docs.pages import File, Page, Run, missing, put
from edl.tests.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.05
PLAIN = {"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
#: What the shell itself says of a job that was killed, where a terminal would show it otherwise.
_NOTICE = re.compile(r"^\S+/\d+\.sh: line \d+: +\d+ (?:Killed|Terminated|Interrupt)\b.*\n", re.M)
_FOREGROUND = re.compile(r"fg %(\d+)")
_BEGIN = """trap 'trap "" TERM; kill -TERM 0' EXIT"""  # whoever is left, when the shell ends
_END = "for job in $(jobs -p | tac); do kill $job; wait $job; done 2>/dev/null; true"


class Mismatch(AssertionError):
    """Something else happens than a page shows."""


class Shell:
    """One bash that runs commands in `folder/work`, each with a deadline. Use it in a `with`."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.work = folder / "work"
        self._own = folder / "session"
        for made in (self.work, self._own):
            made.mkdir()
        self._told = 0
        self._scripts = 0
        self._outputs: dict[int, Path] = {}  # of jobs, by the shell's numbers
        orders = self._own / "orders"
        os.mkfifo(orders)
        # Both ends, so that nobody waits for the other.
        self._orders = os.open(orders, os.O_RDWR)
        ours = (name for name in os.environ if name.startswith(("EDL_", "PYTHON")))
        exports = (f"export {name}={shlex.quote(text)}" for name, text in variables.items())
        forget = " ".join(["unset", LIFE_VARIABLE, *ours])
        begin, _ = self._script("\n".join([forget, _BEGIN, *exports]))
        argv = ("bash", "--noprofile", "--norc", str(orders))
        self._bash = start(Command("shell", argv, cwd=self.work, guard=True))
        self._order(f". {begin}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, value: object, __: object) -> None:
        """End what runs in the background, the youngest first, then the shell."""
        try:
            if self._bash.alive and not isinstance(value, KeyboardInterrupt):
                self._order(_END)
        finally:
            os.write(self._orders, b"exit\n")
            self._bash.wait(DEADLINE_S)
            self._bash.stop()
            os.close(self._orders)

    def run(self, command: str, within_s: float) -> tuple[int, str]:
        """Run a command to its end; returns its exit code and what it printed. Raises Mismatch."""
        if job := _FOREGROUND.fullmatch(command):  # which only a terminal has
            script, _ = self._script(f"wait %{job[1]}")
            if (output := self._outputs.get(int(job[1]))) is None:
                raise Mismatch(f"job {job[1]} has ended, or never began")
            order = f". {script}"
        else:
            script, output = self._script(command)
            order = f". {script} >{output} 2>&1 </dev/null"
        try:
            code = self._order(order, within_s)
        except ProcessFailed as error:
            self._interrupt()
            late = f"it takes longer than {within_s:g} s, or ends the shell"
            raise Mismatch(f"{late}; it printed:\n{_read(output)}") from error
        return code, _NOTICE.sub("", _read(output))

    def begin(self, command: str) -> Path:
        """Start a command in the background; returns the file of its output."""
        script, output = self._script(command + " &")
        self._order(f". {script} >{output} 2>&1 </dev/null")
        # A job that has ended may be forgotten already: then it has no number.
        number = r'jobs -l | sed -n "s/^\[\([0-9]*\)\]. *$! .*/\1/p"'
        self._order(f"echo job {self._scripts} $({number})")
        job = self._bash.expect(rf"^job {self._scripts}(?: (\d+))?$", DEADLINE_S)
        if job[1] is not None:
            self._outputs[int(job[1])] = output
        return output

    def runs(self) -> bool:
        """Whether the job that was started last still runs."""
        return self._order('kill -0 "$!" 2>/dev/null') == 0

    def _interrupt(self) -> None:
        """TERM to all that runs until the shell listens again, as it may start a program late."""
        deadline = time.monotonic() + DEADLINE_S
        while self._bash.alive and time.monotonic() < deadline:
            with contextlib.suppress(psutil.Error):  # it has ended
                for program in psutil.Process(self._bash.pid).children():  # the guard's: bash
                    for child in program.children():
                        child.terminate()
            with contextlib.suppress(ProcessFailed):
                self._bash.expect(rf"^told {self._told} (\d+)$", POLL_S)
                return

    def _script(self, command: str) -> tuple[Path, Path]:
        self._scripts += 1
        script = self._own / f"{self._scripts}.sh"
        script.write_text(command + "\n")
        return script, script.with_suffix(".out")

    def _order(self, words: str, within_s: float = DEADLINE_S) -> int:
        self._told += 1
        os.write(self._orders, f"{words}\necho told {self._told} $?\n".encode())
        return int(self._bash.expect(rf"^told {self._told} (\d+)$", within_s)[1])


def play(page: Page, folder: Path, *, short: bool) -> None:
    """Run a page in `folder`, a `short` one without its nightly blocks. Raises Mismatch."""
    with ExitStack() as undo:
        ports = {port: undo.enter_context(held_port()) for port in page.ports}
        named = {name: str(ports[port]) for port, name in page.ports.items() if name}
        named |= {name: put(text, ports) for name, text in page.variables.items()}
        own = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "session"),
            "CLONE": str(ROOT),
            "PYTHONPATH": str(ROOT / "src"),  # this checkout, not an installed one
        }
        shell = undo.enter_context(Shell(folder, {**own, **PLAIN, **named}))
        for step in page.steps:
            if short and step.nightly:
                continue
            if isinstance(step, File):
                file = shell.work / step.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(put(step.text, ports), "utf-8")
                continue
            try:
                _do(shell, step, ports)
            except Mismatch as error:
                raise Mismatch(f"{page.name}:{step.line}: $ {step.command}\n{error}") from error


def _do(shell: Shell, step: Run, ports: Mapping[str, int]) -> None:
    command = put(step.command, ports)
    shown = [put(line, ports) for line in step.shown]
    deadline = time.monotonic() + step.within_s
    if step.background:
        _until_printed(shell, shell.begin(command), step, shown, deadline)
        return
    while True:
        code, printed = shell.run(command, max(1.0, deadline - time.monotonic()))
        wrong = None if step.hidden else missing(shown, printed, exact=step.exact)
        if code != step.code:
            wrong = f"its exit code is {code}, not {step.code}"
        if wrong is None:
            return
        if not step.until or time.monotonic() >= deadline:
            raise Mismatch(f"{wrong}\nit printed:\n{printed}")
        time.sleep(POLL_S)


def _until_printed(
    shell: Shell, output: Path, step: Run, shown: list[str], deadline: float
) -> None:
    last = False  # look: it has ended, or the time is over
    while True:
        wrong = missing(shown, _read(output), at_start=True, exact=step.exact)
        if wrong is None:
            return
        if last:
            raise Mismatch(f"{wrong}\nit printed so far:\n{_read(output)}")
        last = time.monotonic() >= deadline or not shell.runs()
        time.sleep(0 if last else POLL_S)


def _read(output: Path) -> str:
    return output.read_text("utf-8", "replace") if output.exists() else ""
