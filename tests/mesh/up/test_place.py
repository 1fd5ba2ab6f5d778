"""Where a mesh is written down: found by its file, held by one, right about who is who."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.mesh.up.ending import ORPHANS_S, end, meant
from edl.mesh.up.keeping import already_up
from edl.mesh.up.place import Entry, Place, State, all_places
from edl.supervise import Identity, identity_of, start
from edl.tests.ground.programs import DOCILE, STUBBORN, python

STRANGER = Identity(os.getpid(), "another-boot/1")


def state_of(file: Path, keeper: Identity = STRANGER, *entries: Entry) -> State:
    return State(str(file), keeper, "up", "redis://:secret@127.0.0.1:1", "/logs", 60.0, entries)


def place_of(tmp_path: Path, name: str = "mesh.yaml") -> Place:
    place = Place.of(tmp_path / name, tmp_path / "base")
    place.folder.mkdir(parents=True, exist_ok=True)
    return place


def test_a_file_has_one_place_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "link.yaml").symlink_to("mesh.yaml")
    monkeypatch.chdir(tmp_path)
    names = ("mesh.yaml", "here/../mesh.yaml", "link.yaml", tmp_path / "mesh.yaml")
    assert len({Place.of(Path(name), tmp_path) for name in names}) == 1
    assert Place.of(Path("other.yaml"), tmp_path) != Place.of(Path("mesh.yaml"), tmp_path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    state = state_of(tmp_path, STRANGER, Entry("a", "teacher", "running", STRANGER, "h:1"))
    place.write(state)
    assert place.read() == state
    assert (place.folder / "state.json").stat().st_mode & 0o077 == 0, "it may hold a password"
    assert all_places(tmp_path / "base") == [(place, state)]
    place.forget()
    assert place.read() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 99}', "\xff"])
def test_what_was_not_written_by_us_is_nothing(tmp_path: Path, text: str) -> None:
    place = place_of(tmp_path)
    (place.folder / "state.json").write_text(text)
    assert place.read() is None


def test_one_holds_it(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    for _ in range(2):
        with place.held() as ours:
            assert ours
            with place.held() as again:
                assert not again
    assert list((tmp_path / "base").glob("*.lock")) == []


def test_where_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "base").touch()
    with (
        pytest.raises(UsageError, match=r"cannot write in .*base.* XDG_CACHE_HOME"),
        Place.of(tmp_path / "mesh.yaml", tmp_path / "base").held(),
    ):
        pass


def test_who_starts_it_twice_hears_how_to_end_it() -> None:
    entries = (Entry("a", "teacher", "running"), Entry("b", "teacher", "due"))
    told = already_up(Path("mesh.yaml"), state_of(Path("mesh.yaml"), STRANGER, *entries))
    assert told == (
        f"mesh.yaml is up already (pid {os.getpid()}, 1 of 2 processes, redis://***@127.0.0.1:1,"
        " logs in /logs): 'edl down mesh.yaml' ends it"
    )
    assert "'edl down mesh.yaml' ends it" in already_up(Path("mesh.yaml"), None)


def test_a_stranger_that_has_the_number_is_left_alone(tmp_path: Path) -> None:
    child = start(python(DOCILE))
    child.expect("ready", 20.0)
    known = identity_of(child.pid)
    assert known is not None
    stranger = Identity(child.pid, f"{known.started}0")
    place = place_of(tmp_path)
    place.write(state_of(tmp_path, stranger, Entry("a", "teacher", "running", stranger)))
    said: list[str] = []
    assert not end(place, None, said.append)
    assert (said, child.alive, place.folder.exists()) == ([], True, False)
    child.stop()


def test_what_a_killed_keeper_has_left_is_ended(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    child = start(python("import time; print('ready'); time.sleep(600)"))
    child.expect("ready", 20.0)
    place.write(state_of(tmp_path, STRANGER, Entry("a", "x", "running", identity_of(child.pid))))
    (place.folder / "logs").mkdir()
    said: list[str] = []
    assert end(place, None, said.append, keep_logs=True, orphans_s=0.0)
    assert child.wait(20.0) == -9
    assert said == ["waiting for a process of a mesh whose 'edl up' was killed"]
    assert place.read() is None
    assert place.logs.exists()
    assert not end(place, None, said.append)
    assert not place.folder.exists()


def test_what_is_to_end_at_once_is_not_waited_for(tmp_path: Path) -> None:
    stubborn = [start(python(STUBBORN, 60)) for _ in range(2)]
    for child in stubborn:
        child.expect("ready", 20.0)
    keeper, left = (identity_of(child.pid) for child in stubborn)
    assert keeper is not None
    place, said = place_of(tmp_path), list[str]()
    place.write(state_of(tmp_path, keeper, Entry("a", "x", "running", left)))
    began_s = time.monotonic()
    assert end(place, 0.0, said.append)
    assert [child.wait(20.0) for child in stubborn] == [-9, -9]
    assert time.monotonic() - began_s < ORPHANS_S
    assert not any("has not ended" in line for line in said)


def test_a_mesh_that_leaves_already_is_not_hurried(tmp_path: Path) -> None:
    child = start(python(DOCILE))
    child.expect("ready", 20.0)
    keeper = identity_of(child.pid)
    assert keeper is not None
    place, said = place_of(tmp_path), list[str]()
    place.write(State("mesh.yaml", keeper, "leaving"))
    assert end(place, 0.01, said.append)
    assert child.wait(20.0) == -9, "it was waited for, and then killed: TERM would have ended it"
    assert said == [f"process {child.pid} has not ended within 0.01 s and is killed"]


def test_the_only_mesh_need_not_be_named(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with pytest.raises(UsageError, match="no mesh is up"):
        meant(None, False, base)
    assert meant(None, True, base) == []
    one, two = place_of(tmp_path, "one.yaml"), place_of(tmp_path, "two.yaml")
    one.write(state_of(tmp_path / "one.yaml"))
    assert meant(None, False, base) == [(one, str(tmp_path / "one.yaml"))]
    two.write(state_of(tmp_path / "two.yaml"))
    with pytest.raises(UsageError, match=r"several .* name one of .*one.yaml, .*two.yaml, or say"):
        meant(None, False, base)
    assert [place for place, _ in meant(None, True, base)] == [one, two]
    here = identity_of(os.getpid())
    assert here is not None
    two.write(state_of(tmp_path / "two.yaml", here))
    assert [place for place, _ in meant(None, False, base)] == [two], "the other one was killed"
    assert meant(tmp_path / "two.yaml", False, base)[0][0] == two
    with pytest.raises(UsageError, match="one of both"):
        meant(tmp_path / "two.yaml", True, base)


def test_a_file_that_is_none_is_no_mesh_unless_one_was_started_from_it(tmp_path: Path) -> None:
    base, typo, here = tmp_path / "base", tmp_path / "typo.yaml", identity_of(os.getpid())
    assert here is not None
    with pytest.raises(UsageError, match=r"there is no file .*typo\.yaml; up: no mesh"):
        meant(typo, False, base)
    place_of(tmp_path, "one.yaml").write(state_of(tmp_path / "one.yaml", here))
    with pytest.raises(UsageError, match=r"typo\.yaml; up: .*one\.yaml$"):
        meant(typo, False, base)
    place = place_of(tmp_path, "typo.yaml")
    place.write(state_of(typo))
    assert meant(typo, False, base) == [(place, str(typo))]
    place.clear()
    typo.touch()
    assert meant(typo, False, base) == [(place, str(typo))]
