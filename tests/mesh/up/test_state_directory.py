"""Where a mesh is written down: found by its file, held by one `edl up`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl.mesh.up.down import selected_meshes
from edl.mesh.up.mesh_run import already_up
from edl.mesh.up.state_directory import MeshRecord, ProcessRecord, StateDirectory, recorded_meshes
from edl.runtime.errors import UsageError
from edl.runtime.supervise import Identity, identity_of

STRANGER = Identity(os.getpid(), "another-boot/1")


def state_of(file: Path, keeper: Identity = STRANGER, *entries: ProcessRecord) -> MeshRecord:
    return MeshRecord(
        str(file), keeper, "up", "redis://:secret@127.0.0.1:1", "/logs", 60.0, entries
    )


def place_of(tmp_path: Path, name: str = "mesh.yaml") -> StateDirectory:
    place = StateDirectory.of(tmp_path / name, tmp_path / "base")
    place.folder.mkdir(parents=True, exist_ok=True)
    return place


def put(place: StateDirectory, state: MeshRecord) -> None:
    """Write a record as a killed `edl up` leaves it, or one that still holds the lock."""
    place.pid_file.write_text(state.to_json())


def test_a_file_has_one_place_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "link.yaml").symlink_to("mesh.yaml")
    monkeypatch.chdir(tmp_path)
    names = ("mesh.yaml", "here/../mesh.yaml", "link.yaml", tmp_path / "mesh.yaml")
    assert len({StateDirectory.of(Path(name), tmp_path) for name in names}) == 1
    assert StateDirectory.of(Path("other.yaml"), tmp_path) != StateDirectory.of(
        Path("mesh.yaml"), tmp_path
    )
    latin = StateDirectory.of(Path(os.fsdecode(b"m\xfc.yaml")), tmp_path)
    assert latin.folder.name.startswith("m--"), "a name may be no UTF-8"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    state = state_of(tmp_path, STRANGER, ProcessRecord("a", "teacher", "running", STRANGER, "h:1"))
    with place.lock() as pid_file:
        assert pid_file is not None
        for _ in range(2):
            pid_file.write(state)
            assert place.read() == state
            assert place.pid_file.stat().st_mode & 0o077 == 0, "it may hold a password"
            assert recorded_meshes(tmp_path / "base") == [(place, state)]
            with place.lock() as other:
                assert other is None, "it is locked whenever it is written"
    assert list((tmp_path / "base").iterdir()) == [place.folder]
    here = identity_of(os.getpid())
    assert here is not None
    told = already_up(Path("mesh.yaml"), state_of(tmp_path, here))
    assert all(part in told for part in (f"pid {here.pid}", "redis://***@127.0.0.1:1"))
    assert "try again" in already_up(Path("mesh.yaml"), None)
    wrong = state.to_json().replace(f'"pid": {STRANGER.pid}', '"pid": "1"')
    for text in ("", "[]", "{}", '{"version": 1}', '{"version": 99}', "\xff", wrong):
        place.pid_file.write_text(text)
        assert place.read() is None, "it has another form"


def test_a_record_stays_while_its_processes_run(tmp_path: Path) -> None:
    place, here = place_of(tmp_path), identity_of(os.getpid())
    state = state_of(tmp_path, STRANGER, ProcessRecord("a", "teacher", "running", here))
    put(place, state)
    with place.lock():
        pass
    assert place.read() == state
    put(place, state_of(tmp_path))
    with place.lock():
        pass
    assert not place.pid_file.exists()


def test_a_file_that_was_replaced_is_not_removed(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    with place.lock():
        place.pid_file.unlink()
        put(place, state_of(tmp_path))
    assert place.read() is not None


def test_where_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "base").touch()
    place = StateDirectory.of(tmp_path / "mesh.yaml", tmp_path / "base")
    with pytest.raises(UsageError, match=r"cannot write in .*base.* XDG_CACHE_HOME"), place.lock():
        pass


def test_the_only_mesh_is_meant_without_its_name(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with pytest.raises(UsageError, match="no mesh is up"):
        selected_meshes(None, False, base)
    assert selected_meshes(None, True, base) == []
    one, two = place_of(tmp_path, "one.yaml"), place_of(tmp_path, "two.yaml")
    put(one, state_of(tmp_path / "one.yaml"))
    assert selected_meshes(None, False, base) == [(one, str(tmp_path / "one.yaml"))]
    put(two, state_of(tmp_path / "two.yaml"))
    with pytest.raises(UsageError, match=r"several .* name one of .*one.yaml, .*two.yaml, or use"):
        selected_meshes(None, False, base)
    assert [place for place, _ in selected_meshes(None, True, base)] == [one, two]
    here = identity_of(os.getpid())
    assert here is not None
    put(two, state_of(tmp_path / "two.yaml", here))
    assert [place for place, _ in selected_meshes(None, False, base)] == [two], (
        "the other one was killed"
    )
    assert selected_meshes(tmp_path / "two.yaml", False, base)[0][0] == two
    with pytest.raises(UsageError, match="not both"):
        selected_meshes(tmp_path / "two.yaml", True, base)


def test_a_file_that_is_none_is_no_mesh_unless_one_was_started_from_it(tmp_path: Path) -> None:
    base, typo, here = tmp_path / "base", tmp_path / "typo.yaml", identity_of(os.getpid())
    assert here is not None
    with pytest.raises(UsageError, match=r"there is no file .*typo\.yaml; up: no mesh"):
        selected_meshes(typo, False, base)
    put(place_of(tmp_path, "one.yaml"), state_of(tmp_path / "one.yaml", here))
    with pytest.raises(UsageError, match=r"typo\.yaml; up: .*one\.yaml$"):
        selected_meshes(typo, False, base)
    place = place_of(tmp_path, "typo.yaml")
    put(place, state_of(typo))
    assert selected_meshes(typo, False, base) == [(place, str(typo))]
    place.delete()
    typo.touch()
    assert selected_meshes(typo, False, base) == [(place, str(typo))]
