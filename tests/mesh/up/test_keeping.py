"""What `edl up` leaves and comes to: its state, its exit code, what it makes of one before."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from edl.errors import ProcessFailed, UsageError
from edl.lifecycle import Stop
from edl.mesh.up.display import Follow, Plain
from edl.mesh.up.ending import end
from edl.mesh.up.keeping import Keeping, keep
from edl.mesh.up.members import Member, Plan
from edl.mesh.up.place import Entry, Place, State
from edl.supervise import Identity, identity_of, start
from edl.tests.ground.programs import DOCILE, WAIT_S, python
from edl.tests.mesh.up.small import coordinator, student, teacher


def keeping_of(folder: Path, *members: Member) -> Keeping:
    place = Place.of(folder / "mesh.yaml", folder / "base")
    return Keeping(folder / "mesh.yaml", place, Plan(members, folder), place.logs)


def kept(keeping: Keeping) -> int:
    return keep(keeping, Plain(lambda line: None, Follow(None, {})), Stop())


def test_the_exit_code_is_that_of_the_students(tmp_path: Path) -> None:
    fails = student("raise SystemExit(7)", retries=0)
    assert kept(keeping_of(tmp_path, coordinator(), fails)) == 7
    keeping = keeping_of(tmp_path, coordinator(), student("print('learned')"))
    assert kept(keeping) == 0
    assert (keeping.logs / "u.log").read_text() == "learned\n", "the log has begun anew"
    assert keeping.place.read() is None


@pytest.mark.parametrize(("code", "error"), [(2, UsageError), (1, ProcessFailed)])
def test_a_mesh_that_cannot_be_is_an_error(
    tmp_path: Path, code: int, error: type[Exception]
) -> None:
    broken = teacher(f"import sys; print('edl: no such model'); sys.exit({code})")
    keeping = keeping_of(tmp_path, coordinator(), broken)
    with pytest.raises(error, match=f"t ended with exit code {code}: no such model"):
        kept(keeping)
    assert keeping.place.read() is None


def test_one_is_enough(tmp_path: Path) -> None:
    keeping = keeping_of(tmp_path, coordinator())
    with keeping.place.held(), pytest.raises(UsageError, match=r"'edl down .*mesh.yaml' ends it"):
        kept(keeping)


def test_what_is_left_of_one_that_was_killed_ends_first(tmp_path: Path) -> None:
    keeping = keeping_of(tmp_path, coordinator(), student("print('learned')"))
    child = start(python(DOCILE))
    child.expect("ready", WAIT_S)
    keeping.place.folder.mkdir(parents=True)
    entry = Entry("u", "student", "running", identity_of(child.pid))
    keeping.place.write(State("mesh.yaml", Identity(1 << 30, "gone"), entries=(entry,)))
    said: list[str] = []

    def write(line: str) -> None:
        said.append(line)
        if "was killed" in line:
            child.send_signal(signal.SIGTERM)  # as its life pipe would have it

    assert keep(keeping, Plain(write, Follow(None, {})), Stop()) == 0
    assert said[:2] == [
        "waiting for a process of a mesh whose 'edl up' was killed",
        "coordinator is ready: h:1",
    ]
    assert not child.alive


def test_a_full_disk_ends_no_mesh(tmp_path: Path) -> None:
    place = Place.of(tmp_path / "mesh.yaml", tmp_path / "base")
    plan = Plan((coordinator(), student("print('learned')")), tmp_path)
    keeping = Keeping(tmp_path / "mesh.yaml", place, plan, tmp_path / "logs")
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line == "u runs":
            place.folder.rename(tmp_path / "away")
            place.folder.write_text("no folder any more")

    assert keep(keeping, Plain(say, Follow(None, {})), Stop()) == 0
    told = [line for line in said if "not written down" in line]
    assert len(told) == 1, "once is enough"
    assert told[0].startswith("the mesh goes on, but is not written down: cannot write in ")


def test_who_runs_keeps_its_mesh_without_a_lock_too(tmp_path: Path) -> None:
    keeping = keeping_of(tmp_path, coordinator())
    child = start(python(DOCILE))
    child.expect("ready", WAIT_S)
    known = identity_of(child.pid)
    assert known is not None
    keeping.place.write(State("mesh.yaml", known))
    with pytest.raises(UsageError, match=f"is up already .pid {child.pid}"):
        kept(keeping)
    assert end(keeping.place, WAIT_S, lambda line: None)
    assert child.wait(WAIT_S) is not None
    assert not keeping.place.folder.exists()


def test_a_grace_is_that_of_all_roles_one_after_the_other(tmp_path: Path) -> None:
    keeping = keeping_of(tmp_path, coordinator(), teacher(), student(""))
    assert keeping.grace_s == 10.0 + 10.0 + 10.0 + 5.0
