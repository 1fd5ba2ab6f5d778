"""A mesh that `edl up` keeps, by small programs: order, restarts, its end, its exit code."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from rich.console import Console

from edl.mesh.local import COORDINATOR_READY, TEACHER_READY
from edl.mesh.up.display import MeshDisplay, MeshView, line_prefixes, open_display
from edl.mesh.up.down import stop_mesh
from edl.mesh.up.mesh_run import MeshRun, run_mesh
from edl.mesh.up.mesh_state import ProcessSpec, Role
from edl.mesh.up.plan import LaunchPlan
from edl.mesh.up.runner import MeshRunner
from edl.mesh.up.state_directory import MeshRecord, ProcessRecord, StateDirectory
from edl.runtime.errors import ProcessFailed, UsageError
from edl.runtime.lifecycle import Stop
from edl.runtime.supervise import Identity, Process, identity_of, start
from edl.tests.mesh.up.test_state_directory import STRANGER, place_of, put, state_of
from edl.tests.runtime.programs import DOCILE, STUBBORN, WAIT_S, python
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system


class Kept(AbstractContextManager["Kept"]):
    """A runner in a thread, and what it has said; it ends with the `with`."""

    def __init__(self, folder: Path, *members: ProcessSpec, keep: bool = False) -> None:
        self.said: list[str] = []
        self.views: list[MeshView] = []
        self.writable = True
        self.wish = Stop()
        names = {one.name: one.group for one in members}
        plan = LaunchPlan(members, folder)
        display = MeshDisplay(
            self.said.append, line_prefixes(["u"] if "u" in names else None, names)
        )
        self.runner = MeshRunner(plan, folder / "logs", display, self._seen, keep)
        self._pool = ThreadPoolExecutor(1)
        self._ended = self._pool.submit(self.runner.run, self.wish)

    def __exit__(self, *_: object) -> None:
        self.end(urgent=True)
        self._pool.shutdown()

    def _seen(self, view: MeshView) -> None:
        self.views.append(view)
        if not self.writable:
            raise UsageError("the disk is full")

    def until(self, pattern: str) -> None:
        wait_until(lambda: any(re.search(pattern, line) for line in list(self.said)))

    def end(self, urgent: bool = False) -> MeshView:
        """What it came to, when it was told to end, or has ended by itself."""
        self.wish.urgent = urgent
        self.wish.request()
        return self._ended.result(DEADLINE_S)


def test_it_comes_in_order_heals_and_goes_in_order(tmp_path: Path) -> None:
    with Kept(tmp_path, coordinator(), teacher(), student(SERVES, "{coordinator}")) as mesh:
        mesh.until("^up in")
        assert mesh.said[:3] == ["coordinator is ready: h:1", "t is ready: h:2", "u runs"]
        mesh.until(r"^u \| redis://r:1")
        mesh.writable = False
        process = mesh.views[-1].latest_runs["t"].process
        assert process is not None
        process.kill()
        mesh.until(r"^t is ready again \(start 2\)")
        assert any(line.startswith("t was ended by SIGKILL") for line in mesh.said)
        count = len(mesh.views)
        wait_until(lambda: len(mesh.views) >= count + 3)  # offered again though nothing changes
        mesh.writable = True
        ended = mesh.end()
    left = [line for line in mesh.said if line.endswith("has left")]
    assert left == [f"{name} has left" for name in ("u", "t", "coordinator")]
    assert (ended.mesh.exit_code, ended.url) == (0, "redis://r:1")
    assert (tmp_path / "logs" / "t.log").read_text() == f"{TEACHER}\n" * 2
    assert mesh.views[-1].mesh.over
    assert mesh.views[-1].latest_runs["u"].identity is None


def test_a_program_that_cannot_be_started_has_no_last_line(tmp_path: Path) -> None:
    nothing = replace(student(SERVES), argv=("/no/program",))
    with Kept(tmp_path, coordinator(), nothing) as mesh:
        mesh.until("the mesh ends|all students have ended")
    why = "cannot start u: there is no program '/no/program'"
    assert mesh.said[1] == f"{why}; u is started again at once"
    log = tmp_path / "logs" / "u.log"
    assert mesh.said[2] == f"u is given up after 2 starts: {why} ({log})"
    keeping = keeping_of(tmp_path, replace(coordinator(), argv=("/no/program",)))
    with pytest.raises(ProcessFailed, match=r"^cannot start coordinator: there is no program"):
        kept(keeping)


def test_all_is_killed_when_it_is_urgent(tmp_path: Path) -> None:
    deaf = SERVES.replace("sys.exit(0)", "None")
    with Kept(tmp_path, coordinator(), student(deaf, "x")) as mesh:
        mesh.until("^up in")
        ended = mesh.end(urgent=True)
    assert ended.mesh.of("u").code == -9


def test_the_lines_of_named_processes_are_shown() -> None:
    members = {"coordinator": "coordinator", "s-1": "s", "s-2": "s", "u": "u"}
    assert line_prefixes(None, members) == {}
    assert line_prefixes([], members).keys() == members.keys()
    assert line_prefixes(["s", "u"], members).keys() == {"s-1", "s-2", "u"}
    assert line_prefixes(["s-2", "u"], members)["u"] == "u   | "
    with pytest.raises(UsageError, match="nothing here is called 'x'"):
        line_prefixes(["x"], members)


def test_a_terminal_has_a_table_with_a_row_for_each_process_below_the_lines(tmp_path: Path) -> None:
    noisy = student("print('[b]3 % \\x1b[31m')")
    with Kept(tmp_path, coordinator(), teacher(), noisy, keep=True) as mesh:
        mesh.until("^u is done")
        mesh.until("^up in")
        view = mesh.end()
    screen, said = StringIO(), list[str]()
    terminal = Console(width=100, force_terminal=True, file=screen, record=True)
    with open_display(terminal, "mesh.yaml", line_prefixes([], {"u": "u"}), said.append) as display:
        display.view = view
        display.print_output("u", "[b] epoch 3\x1b[2J")
    text = screen.getvalue()
    assert r"u | [b] epoch 3\x1b[2J" in text
    assert text.index("epoch 3") < text.rindex("coordinator")
    rows = terminal.export_text().rstrip().splitlines()[-3:]
    assert [row.split()[:2] for row in rows] == [
        ["coordinator", "left"],
        ["t", "left"],
        ["u", "done"],
    ]
    assert rows[2].rstrip().endswith("[b]3 % [31m"), "output of programs is no markup"
    with open_display(Console(file=screen), "x", {}, said.append) as display:
        display.view = view
        display.say("plain")
    assert said == ["plain"]


SERVES = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(sys.argv[1], flush=True)
    time.sleep(600)
"""
COORDINATOR = "coordinator ready: redis://r:1 manager h:1"
TEACHER = "teacher ready: t s on h:2"


def member(name: str, role: Role, code: str, *args: str, **more: Any) -> ProcessSpec:
    words = (sys.executable, "-P", "-u", "-c", dedent(code), *args)
    return ProcessSpec(name, role, more.pop("group", name), argv=words, is_edl=False, **more)


def coordinator() -> ProcessSpec:
    return member("coordinator", "coordinator", SERVES, COORDINATOR, ready=COORDINATOR_READY)


def teacher(code: str = SERVES) -> ProcessSpec:
    return member("t", "teacher", code, TEACHER, ready=TEACHER_READY, group="s")


def student(code: str, *args: str, retries: int = 1) -> ProcessSpec:
    return member("u", "student", code, *args, retries=retries)


def keeping_of(folder: Path, *members: ProcessSpec) -> MeshRun:
    place = StateDirectory.of(folder / "mesh.yaml", folder / "base")
    return MeshRun(folder / "mesh.yaml", place, LaunchPlan(members, folder), place.logs)


def kept(keeping: MeshRun, say: Callable[[str], None] = lambda line: None) -> int:
    def told(line: str) -> None:
        print(line)  # for the report of a failure
        say(line)

    return run_mesh(keeping, MeshDisplay(told, {}), Stop())


LEARNS = "print('learned')"


def test_checkpoints_stay_until_edl_down_and_the_exit_code_is_that_of_the_students(
    tmp_path: Path,
) -> None:
    fails = student("print('no data'); raise SystemExit(7)", retries=0)
    assert kept(keeping_of(tmp_path, coordinator(), fails)) == 7
    keeping = keeping_of(tmp_path, coordinator(), student(LEARNS))
    said: list[str] = []
    assert kept(keeping, said.append) == 0
    assert (keeping.logs / "u.log").read_text() == "learned\n", "the log has begun anew"
    assert keeping.directory.read() is None
    assert not any("resume from" in line for line in said)
    saved = keeping.directory.checkpoints / "u" / "step-1"
    saved.mkdir(parents=True)
    assert kept(keeping, said.append) == 0
    assert saved.exists()
    (told,) = [line for line in said if "resume from" in line]
    assert (str(keeping.directory.checkpoints) in told, "edl down" in told) == (True, True)
    stop_mesh(keeping.directory, None, said.append)
    assert not saved.exists()


@pytest.mark.parametrize(("code", "error"), [(2, UsageError), (1, ProcessFailed)])
def test_a_mesh_without_a_teacher_is_an_error(
    tmp_path: Path, code: int, error: type[Exception]
) -> None:
    broken = teacher(f"import sys; print('edl: no such model'); sys.exit({code})")
    keeping = keeping_of(tmp_path, coordinator(), broken, student(SERVES, "x"))
    said: list[str] = []
    with pytest.raises(error, match=f"t ended with exit code {code}: no such model"):
        kept(keeping, said.append)
    assert "u runs" not in said
    assert "t has failed, so the mesh ends" in said
    assert keeping.directory.read() is None


@pytest.fixture
def child() -> Iterator[Process]:
    process = start(python(DOCILE))
    process.expect("ready", WAIT_S)
    yield process
    process.stop()


def identity(process: Process) -> Identity:
    found = identity_of(process.pid)
    assert found is not None
    return found


def test_processes_that_a_killed_keeper_left_end_first(tmp_path: Path, child: Process) -> None:
    keeping = keeping_of(tmp_path, coordinator(), student(LEARNS))
    keeping.directory.folder.mkdir(parents=True)
    entry = ProcessRecord("u", "student", "running", identity(child))
    put(keeping.directory, MeshRecord("mesh.yaml", Identity(1 << 30, "gone"), entries=(entry,)))
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "was killed" in line:
            child.send_signal(signal.SIGTERM)  # as its life pipe would have it

    assert kept(keeping, say) == 0
    assert "was killed" in said[0]
    assert said[1] == "coordinator is ready: h:1"
    assert not child.alive


def test_a_full_disk_ends_no_mesh(tmp_path: Path) -> None:
    keeping = keeping_of(tmp_path, coordinator(), student(LEARNS))
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line == "u runs":
            base = keeping.directory.folder.parent
            base.rename(tmp_path / "away")
            base.write_text("no folder any more")

    assert kept(replace(keeping, logs=tmp_path / "logs"), say) == 0
    assert sum("record cannot be written: cannot write in " in line for line in said) == 1


def keeper_of(place: StateDirectory, code: str, *args: object) -> Process:
    """A program that holds the lock of a mesh, as `edl up` does."""
    place.folder.mkdir(parents=True, exist_ok=True)
    code = dedent(HOLDS).replace("PATH", repr(str(place.pid_file))) + dedent(code)
    process = start(python(code, *args))
    process.expect("ready", WAIT_S)
    return process


HOLDS = """
    import fcntl
    file = open(PATH, "a")
    fcntl.flock(file, fcntl.LOCK_EX)
"""


def test_a_mesh_is_kept_once(tmp_path: Path) -> None:
    keeping = keeping_of(tmp_path, coordinator())
    with keeping.directory.lock(), pytest.raises(UsageError, match="is at work: try again"):
        kept(keeping)
    keeper = keeper_of(keeping.directory, DOCILE)
    put(keeping.directory, MeshRecord("mesh.yaml", identity(keeper)))
    with pytest.raises(UsageError, match=f"is up already .pid {keeper.pid}"):
        kept(keeping)
    assert stop_mesh(keeping.directory, WAIT_S, lambda line: None)
    assert keeper.wait(WAIT_S) is not None
    assert not keeping.directory.folder.exists()
    assert not keeping.directory.pid_file.exists()


def test_a_stranger_that_has_the_number_is_left_alone(tmp_path: Path, child: Process) -> None:
    stranger = Identity(child.pid, f"{identity(child).started}0")
    place = place_of(tmp_path)
    put(place, state_of(tmp_path, stranger, ProcessRecord("a", "teacher", "running", stranger)))
    assert not stop_mesh(place, None, print)
    assert (child.alive, place.folder.exists()) == (True, False)


def test_what_a_killed_keeper_has_left_is_ended(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    left = start(python("import time; print('ready'); time.sleep(600)"))
    left.expect("ready", WAIT_S)
    put(place, state_of(tmp_path, STRANGER, ProcessRecord("a", "x", "running", identity(left))))
    (place.folder / "logs").mkdir()
    assert stop_mesh(place, None, print, keep_logs=True, orphans_s=0.0)
    assert left.wait(WAIT_S) == -9
    assert place.read() is None
    assert place.logs.exists()
    assert not stop_mesh(place, None, print)
    assert not place.folder.exists()


def test_a_lock_that_outlives_its_holder_is_waited_for(tmp_path: Path) -> None:
    """Here a child has the file, too; a process with threads keeps it until the last one ends."""
    place = place_of(tmp_path)
    sleeper = 'import subprocess; subprocess.Popen(["sleep", "1"], pass_fds=[file.fileno()])'
    keeper = keeper_of(place, f"{sleeper}\n{dedent(DOCILE)}")
    put(place, state_of(tmp_path, identity(keeper)))
    assert stop_mesh(place, WAIT_S, print)
    assert keeper.wait(WAIT_S) is not None
    assert not place.folder.exists()


def test_an_urgent_end_waits_for_nothing(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    keeper, left = keeper_of(place, STUBBORN, 60), start(python(STUBBORN, 60))
    left.expect("ready", WAIT_S)
    entry = ProcessRecord("a", "x", "running", identity(left))
    put(place, state_of(tmp_path, identity(keeper), entry))
    assert stop_mesh(place, 0.0, print, orphans_s=1e6)
    assert [process.wait(WAIT_S) for process in (keeper, left)] == [-9, -9]
    leaving = keeper_of(place, DOCILE)
    put(place, MeshRecord("mesh.yaml", identity(leaving), "leaving"))
    assert stop_mesh(place, 0.01, print)
    assert leaving.wait(WAIT_S) == -9, (
        "it was waited for, and then killed: TERM would have ended it"
    )
