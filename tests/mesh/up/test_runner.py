"""A mesh that is kept, by small programs: order, restarts, its end, and what its user is told."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from edl.errors import UsageError
from edl.lifecycle import Stop
from edl.mesh.up.display import Follow, Plain, drawn, opened
from edl.mesh.up.members import Member, Plan
from edl.mesh.up.runner import Runner, View
from edl.scheduler.mesh_startup import Part
from edl.tests.ground.programs import wait_for
from edl.tests.mesh.up.small import SERVES, TEACHER, coordinator, student, teacher


class Kept:
    """A runner in a thread, and what it has said."""

    def __init__(self, folder: Path, *members: Member, keep: bool = False) -> None:
        self.said: list[str] = []
        self.views: list[View] = []
        self.ended: View | None = None
        self.writable = True
        self.wish = Stop()
        names = {one.part.name: one.group for one in members}
        plan = Plan(members, folder)
        display = Plain(self.said.append, Follow(["u"] if "u" in names else None, names))
        self.runner = Runner(
            plan, folder / "logs", display, self._seen, keep=keep, rng=random.Random(1)
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _seen(self, view: View) -> bool:
        self.views.append(view)
        return self.writable

    def _run(self) -> None:
        self.ended = self.runner.run(self.wish)

    def until(self, pattern: str) -> None:
        wait_for(lambda: any(re.search(pattern, line) for line in list(self.said)))

    def end(self, urgent: bool = False) -> View:
        """What it came to, when it was told to end, or has ended by itself."""
        self.wish.urgent = urgent
        self.wish.request()
        return self.over()

    def over(self) -> View:
        self._thread.join(20.0)
        assert self.ended is not None, self.said
        return self.ended


@contextmanager
def kept(folder: Path, *members: Member, keep: bool = False) -> Iterator[Kept]:
    mesh = Kept(folder, *members, keep=keep)
    try:
        yield mesh
    finally:
        mesh.end(urgent=True)


def test_it_comes_in_order_heals_and_goes_in_order(tmp_path: Path) -> None:
    with kept(tmp_path, coordinator(), teacher(), student(SERVES, "{coordinator}")) as mesh:
        mesh.until("^up in")
        assert mesh.said[:3] == ["coordinator is ready: h:1", "t is ready: h:2", "u runs"]
        mesh.until(r"^u \| redis://r:1")
        process = mesh.views[-1].running["t"].process
        assert process is not None
        process.kill()
        mesh.until(r"^t is ready again \(start 2\)")
        first = f"t was ended by SIGKILL and starts again at once; its last line: {TEACHER}"
        assert first in mesh.said
        mesh.wish.request()
        mesh.until("^coordinator has left")
        ended = mesh.over()
    assert [line for line in mesh.said if re.search("leave|left", line)] == [
        "ending: students leave first, then teachers, then the coordinator",
        *(f"{name} has left" for name in ("u", "t", "coordinator")),
    ]
    assert (ended.mesh.exit_code, ended.url) == (0, "redis://r:1")
    assert (tmp_path / "logs" / "t.log").read_text() == f"{TEACHER}\n{TEACHER}\n"
    assert all(view.running["u"].identity is None for view in mesh.views[-1:])


def test_it_ends_when_its_students_have(tmp_path: Path) -> None:
    fails = "import sys; print('no data'); sys.exit(7)"
    with kept(tmp_path, coordinator(), student(fails)) as mesh:
        ended = mesh.over()
    assert ended.mesh.exit_code == 7
    assert ended.mesh.of("u").code == 7
    assert ended.mesh.of("coordinator").code == 0
    log = tmp_path / "logs" / "u.log"
    assert mesh.said[-3:-1] == [
        f"u is given up after 2 starts: it ended with exit code 7; its last line: no data ({log})",
        "all students have ended: teachers and coordinator leave",
    ]


def test_it_stays_when_it_is_kept(tmp_path: Path) -> None:
    with kept(tmp_path, coordinator(), student("print('learned')"), keep=True) as mesh:
        mesh.until("^u is done; its last line: learned")
        mesh.until("^up in")
        assert mesh.end().mesh.exit_code == 0


def test_what_could_not_be_written_down_is_offered_again_though_nothing_has_changed(
    tmp_path: Path,
) -> None:
    with kept(tmp_path, coordinator()) as mesh:
        mesh.until("^up in")
        mesh.writable = False
        process = mesh.views[-1].running["coordinator"].process
        assert process is not None
        process.kill()
        mesh.until(r"^coordinator is ready again")
        count = len(mesh.views)
        wait_for(lambda: len(mesh.views) >= count + 3)
        mesh.writable = True
        wait_for(lambda: mesh.views[-1].mesh.up)
        mesh.end()
    assert mesh.views[-1].mesh.over


def test_all_is_killed_when_it_is_urgent(tmp_path: Path) -> None:
    deaf = SERVES.replace("sys.exit(0)", "None")
    with kept(tmp_path, coordinator(), student(deaf, "x")) as mesh:
        mesh.until("^up in")
        ended = mesh.end(urgent=True)
    assert ended.mesh.of("u").code == -9


def test_a_mesh_without_a_teacher_ends_and_says_why(tmp_path: Path) -> None:
    broken = "import sys; print('edl: no such model'); sys.exit(2)"
    with kept(tmp_path, coordinator(), teacher(broken), student(SERVES, "x")) as mesh:
        ended = mesh.over()
    assert ended.mesh.broken is not None
    assert "u runs" not in mesh.said
    log = tmp_path / "logs" / "t.log"
    assert f"t is given up: it ended with exit code 2; its last line: no such model ({log})" in (
        mesh.said
    )
    assert "the mesh cannot be kept without t: all of it ends" in mesh.said


def test_a_program_that_cannot_be_started_is_one_that_failed(tmp_path: Path) -> None:
    gone = Member(Part("u", "student", retries=0), "u", (str(tmp_path / "gone"),), ours=False)
    with kept(tmp_path, coordinator(), gone) as mesh:
        ended = mesh.over()
    assert ended.mesh.of("u").code == 127
    assert any("u is given up" in line and "there is no program" in line for line in mesh.said)


def test_whose_lines_are_shown() -> None:
    members = {"coordinator": "coordinator", "s-1": "s", "s-2": "s", "u": "u"}
    assert Follow(None, members).names == set()
    assert Follow([], members).names == set(members)
    assert Follow(["s", "u"], members).names == {"s-1", "s-2", "u"}
    assert Follow(["s-2", "u"], members).prefixed("u", "hello") == "u   | hello"
    with pytest.raises(
        UsageError, match="nothing here is called 'x'; there are: coordinator, s, u"
    ):
        Follow(["x"], members)


def test_the_table_has_a_row_for_each_process(tmp_path: Path) -> None:
    with kept(tmp_path, coordinator(), teacher(), student("print('[b]3 % \\x1b[31m')")) as mesh:
        view = mesh.over()
    console = Console(width=100, record=True, force_terminal=True, file=(tmp_path / "x").open("w"))
    console.print(drawn(view, "mesh.yaml"))
    told = console.export_text().splitlines()
    console.file.close()
    assert told[0].split() == ["mesh.yaml", "ending", "1", "of", "3", "processes", "redis://r:1"]
    words = [line.split()[:2] for line in told[1:]]
    assert words == [["coordinator", "left"], ["t", "left"], ["u", "done"]]
    assert told[3].rstrip().endswith("[b]3 % [31m"), "nothing of others is obeyed"


def test_at_a_terminal_lines_stand_above_the_table(tmp_path: Path) -> None:
    with kept(tmp_path, coordinator(), student("print('learned')")) as mesh:
        view = mesh.over()
    screen = StringIO()
    console = Console(width=100, force_terminal=True, file=screen)
    with opened(console, "mesh.yaml", Follow([], {"u": "u"}), mesh.said.append) as display:
        display.show(view)
        display.heard("u", "[b] epoch 3")
    told = screen.getvalue()
    assert "u | [b] epoch 3" in told
    assert told.index("epoch 3") < told.rindex("coordinator")
    with opened(Console(file=screen), "x", Follow([], {"u": "u"}), mesh.said.append) as display:
        display.show(view)
        display.say("plain")
    assert mesh.said[-1] == "plain"
