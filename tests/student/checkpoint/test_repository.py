"""A repository in a folder and behind fsspec: checkpoints come back whole or not at all."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import numpy as np
import pytest
import safetensors.numpy as library
from typer.testing import CliRunner

from edl.runtime.errors import CheckpointDamaged, UsageError
from edl.student.checkpoint import Checkpoint, Contents, Repository, open_checkpoint
from edl.student.checkpoint.checkpoint import Provenance, pack_manifest
from edl.student.checkpoint.cli import app
from edl.student.checkpoint.file_format import read_arrays
from edl.student.checkpoint.fsspec_storage import FsspecStorage
from edl.student.checkpoint.local_storage import LocalStorage
from edl.student.checkpoint.storage import LEFTOVER_S, FileDigest, open_storage
from edl.tests.cli_output import json_of, run
from edl.tests.student.checkpoint.history import clear_memory, memory_url
from edl.tests.student.checkpoint.samples import check, contents_of, damage, flip, newest_step


@pytest.fixture(params=["", "file://", "local://", "memory://"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place without anything, through each of the ways that there are to write to one."""
    yield memory_url() if request.param == "memory://" else f"{request.param}{tmp_path}/job"
    clear_memory()


DAMAGES: list[tuple[str, Callable[[bytes], bytes | None]]] = [
    ("model.safetensors", flip),
    ("model.safetensors", lambda data: flip(data, 3)),  # a header of terabytes
    ("optimizer.safetensors", lambda data: data[:-100]),
    ("optimizer.safetensors", lambda data: None),
    ("state.json", flip),
    ("state.json", lambda data: b""),
    ("MANIFEST.json", lambda data: data[: len(data) // 2]),
    ("MANIFEST.json", lambda data: data.replace(b'"world": 2', b'"world": 3')),
]


def test_a_checkpoint_is_saved_and_restored(url: str) -> None:
    repository = Repository(url)
    assert repository.newest_valid() is None
    assert list(repository.list()) == []
    saved = repository.save(contents_of(7))
    assert (saved.step, saved.world, saved.problem) == (7, 2, "")
    assert saved.nbytes > contents_of(7).nbytes
    again = Repository(url)
    assert again.newest_valid() == saved
    check(again.load(saved))
    check(open_checkpoint(saved.location))
    check(open_checkpoint(url))


def test_the_newest_are_kept(url: str) -> None:
    repository = Repository(url, keep=2)
    for step in (10, 30, 20, 40, 40):
        repository.save(contents_of(step))
    assert [one.step for one in repository.list()] == [40, 40]
    check(open_checkpoint(url))
    check(Repository(url).load(repository.save(contents_of(2))))  # never pruned by its own save


@pytest.mark.parametrize(("file", "change"), DAMAGES)
def test_a_damaged_newest_is_passed_over_and_named(
    url: str, file: str, change: Callable[[bytes], bytes | None], caplog: pytest.LogCaptureFixture
) -> None:
    repository = Repository(url, keep=1)
    older = repository.save(contents_of(1))
    newer = Repository(url, keep=9).save(contents_of(2))
    damage(newer, file, change)
    with caplog.at_level(logging.WARNING):
        assert repository.newest_valid() == older
    (said,) = [record.getMessage() for record in caplog.records]
    assert newer.location in said
    assert file in said
    assert "it is skipped" in said
    caplog.clear()
    assert repository.newest_valid() == older
    assert not caplog.records, "it is said once"
    check(open_checkpoint(url))
    with pytest.raises(CheckpointDamaged, match=file):
        open_checkpoint(newer.location)
    repository.prune()
    assert older.name in {one.name for one in repository.list()}, "it is the newest whole one"
    repository.save(contents_of(3))
    assert [one.step for one in repository.list()] == [3]


def test_a_damaged_newest_checkpoint_evicts_no_valid_one(url: str) -> None:
    """The training goes on from the one before, and saves at lower steps; in another process."""
    older = Repository(url).save(contents_of(1))
    newer = Repository(url).save(contents_of(9))
    damage(newer, "model.safetensors", flip)
    assert not Repository(url, keep=1).prune(), "step 1 is all that there is"
    assert Repository(url, keep=2).save(contents_of(2)).step == 2
    assert [one.step for one in Repository(url).list()] == [9, 2, 1]
    assert Repository(url, keep=1).save(contents_of(2)).step == 2
    assert newest_step(url) == 2
    assert older.name not in {one.name for one in Repository(url).list()}


def test_any_flipped_bit_is_noticed(tmp_path: Path, rng: random.Random) -> None:
    repository = Repository(str(tmp_path))
    saved = repository.save(contents_of(1, size=64))
    files = [path for path in Path(saved.location).iterdir() if path.stat().st_size]
    for _ in range(40):
        path = rng.choice(files)
        whole = path.read_bytes()
        path.write_bytes(flip(whole, rng.randrange(len(whole)), rng.randrange(8)))
        for look in (repository.verify, repository.load):
            with pytest.raises(CheckpointDamaged, match=path.name):
                look(saved)
        path.write_bytes(whole)
    check(repository.load(saved), size=64)


def test_a_checkpoint_without_a_state_is_damaged(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path))
    saved = repository.save(contents_of(1))
    others = {file: digest for file, digest in saved.files.items() if file != "state.json"}
    manifest = pack_manifest(contents_of(1), others, Provenance())
    damage(saved, "MANIFEST.json", lambda _: manifest)
    for look in (repository.verify, repository.load):
        with pytest.raises(CheckpointDamaged, match=r"state\.json is missing"):
            look(saved)
    assert Repository(str(tmp_path)).newest_valid() is None


@pytest.mark.parametrize("file", ["state.json", "MANIFEST.json"])
def test_damaged_or_unfinished_ones_alone_are_no_checkpoint(url: str, file: str) -> None:
    saved = Repository(url).save(contents_of(1))
    damage(saved, file, flip if file == "state.json" else lambda data: None)
    assert Repository(url).newest_valid() is None
    assert bool(Repository(url).list()) == (file == "state.json")
    with pytest.raises(UsageError, match="there is no checkpoint"):
        open_checkpoint(url if file == "state.json" else saved.location)


def test_other_files_of_the_place_are_left_alone_and_a_renamed_folder_is_not_another_step(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-1").mkdir()
    (tmp_path / "events.log").write_text("mine")
    repository = Repository(str(tmp_path), keep=1)
    for step in (1, 2):
        saved = Path(repository.save(contents_of(step)).location)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"notes", "step-1", "events.log", "step-000000000002"}
    shutil.copytree(saved, saved.with_name("step-000000000009"))
    assert newest_step(tmp_path) == 2


def test_files_are_those_of_the_safetensors_library(tmp_path: Path) -> None:
    """It reads ours, and its own are read."""
    saved = Repository(str(tmp_path)).save(contents_of(5))
    arrays = library.load_file(Path(saved.location) / "model.safetensors")
    for name, array in contents_of(5).group("model").items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)
    given = contents_of(3).group("optimizer") | {"flags": np.array([True, False])}
    plain = {name: np.ascontiguousarray(array) for name, array in given.items()}
    path = tmp_path / "other.safetensors"
    library.save_file(plain, path, metadata={"format": "np"})
    with open(path, "rb") as file:
        found = read_arrays(file, path.stat().st_size)
    assert found.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"tensors": {"weight": np.zeros(1)}}, "GROUP/NAME"),
        ({"tensors": {"../x/weight": np.zeros(1)}}, "GROUP/NAME"),
        ({"tensors": {"model/weight": np.array(["a"])}}, "cannot hold model/weight"),
        ({"tensors": {"model/weight": np.ones(2, ">f4")}}, "which is of >f4"),
        ({"step": -1}, "a step of at least 0"),
        ({"world": 0}, "at least one rank"),
    ],
)
def test_contents_are_checked(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Contents(**{"step": 1, "world": 1, **wrong})


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="JSON"):
        Repository(str(tmp_path)).save(Contents(1, 1, {}, {"x": object()}))
    assert list(tmp_path.iterdir()) == []
    for place, keep, match in (
        ("", 1, "need a place"),
        ("nosuch://x/y", 1, "nosuch"),
        ("memory://", 1, "names no folder"),
        ("memory://runs/lr[12]", 1, "would take \\[ for a pattern"),
        ("memory://runs/*", 1, "would take \\* for a pattern"),
        ("memory://x", 0, "at least one"),
    ):
        with pytest.raises(UsageError, match=match):
            Repository(place, keep)


def test_foreign_manifests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    contents, own = Contents(1, 1), Provenance()
    packed = pack_manifest(contents, {"../../key.safetensors": FileDigest(1, "0")}, own)
    with pytest.raises(CheckpointDamaged, match="outside its folder"):
        Checkpoint.unpack_manifest(packed, "step-1", "/step-1")
    with monkeypatch.context() as patch:
        patch.setattr("edl.student.checkpoint.checkpoint.FORMAT", "another")
        packed = pack_manifest(contents, {}, own)
    with pytest.raises(CheckpointDamaged, match="of format 'another'"):
        Checkpoint.unpack_manifest(packed, "step-1", "/step-1")


def test_a_checkpoint_is_whole_where_a_damaged_one_had_its_name(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path))
    damaged = repository.save(contents_of(1))
    damage(damaged, "model.safetensors", flip)
    assert repository.newest_valid() is None
    shutil.rmtree(damaged.location)  # by an operator
    assert repository.save(contents_of(1)).name == damaged.name
    assert [one.problem for one in repository.list()] == [""]
    assert repository.newest_valid() is not None


@pytest.mark.parametrize("url", ["local://", "memory://"], indirect=True)
def test_an_error_of_a_store_removes_no_whole_checkpoint(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is old enough for a leftover of a killed writer, and its manifest cannot be seen now."""
    storage = open_storage(url)
    with monkeypatch.context() as patch:
        patch.setattr("edl.student.checkpoint.storage.time.time", lambda: LEFTOVER_S)
        saved = Repository(url).save(contents_of(1))
    kind = type(fsspec.core.url_to_fs(url)[0])
    known = kind.info

    def info(self: Any, path: str, **options: Any) -> Any:
        if path.endswith("MANIFEST.json"):
            raise TimeoutError("the store is away")
        return known(self, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "info", info)
        storage.tidy()
    check(open_checkpoint(saved.location))
    damage(saved, "MANIFEST.json", lambda data: None)
    storage.tidy()
    assert storage.names() == []


def test_two_nodes_may_add_the_same_file_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(url)
    saved = Repository(url).save(contents_of(1))
    if isinstance(storage, FsspecStorage):
        kind = type(fsspec.core.url_to_fs(url)[0])
        move = kind.mv

        def late(self: Any, *paths: str, **options: Any) -> None:
            monkeypatch.undo()
            storage.add(saved.name, "JOINED.json", b"other")
            move(self, *paths, **options)

        monkeypatch.setattr(kind, "mv", late)
    storage.add(saved.name, "JOINED.json", b"mine")
    with storage.reading(saved.name, "JOINED.json") as file:
        assert file.read() == b"mine"


def test_a_folder_is_locked_until_what_was_left_in_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a writer that has just created it could get the lock, and lose its files."""
    (tmp_path / ".aside-1").mkdir()
    remove = shutil.rmtree
    locked: list[bool] = []

    def slowly(folder: Path, ignore_errors: bool = False) -> None:
        monkeypatch.undo()
        LocalStorage(tmp_path).tidy()  # of another process: it leaves what is locked
        locked.append(folder.exists())
        remove(folder, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    LocalStorage(tmp_path).tidy()
    assert locked == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_that_is_taken_for_left_over_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process tidies up after this one has created it, and before it has locked it."""
    make = Path.mkdir

    def overtaken(self: Path, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if self.name.startswith(".aside-"):
            monkeypatch.undo()
            LocalStorage(tmp_path).tidy()

    monkeypatch.setattr(Path, "mkdir", overtaken)
    check(Repository(str(tmp_path)).load(Repository(str(tmp_path)).save(contents_of(1))))


# --- `edl checkpoint`


@pytest.fixture
def place(tmp_path: Path) -> str:
    repository = Repository(str(tmp_path / "job"))
    for step in (10, 20, 30):
        repository.save(contents_of(step))
    return repository.url


def problems(place: str, *options: str) -> list[str]:
    return [one["problem"] for one in json_of(app, "list", place, *options)]


def test_checkpoints_are_listed(place: str) -> None:
    listed = json_of(app, "list", place)
    assert [one["step"] for one in listed] == [30, 20, 10]
    assert {one["world"] for one in listed} == {2}
    assert listed[0]["location"] == f"{place}/step-000000000030"
    assert all(one["bytes"] > contents_of(1).nbytes and not one["problem"] for one in listed)
    damage(Repository(place).list()[1], "state.json", lambda data: None)
    assert problems(place) == ["", "state.json is missing", ""]
    shown = run(app, "list", place).stdout
    for words in ("step-000000000030", "0.5", "yes", "no: ", " s "):
        assert words in shown


def test_a_list_has_the_new_ones_if_all_are_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(str(tmp_path), keep=1)
    old, new = [repository.save(contents_of(step)).name for step in (1, 2)]
    monkeypatch.setattr(LocalStorage, "names", Mock(side_effect=[[old], [new]]))
    assert [one.name for one in repository.list()] == [new]


def test_looking_where_there_is_no_checkpoint_makes_nothing(tmp_path: Path) -> None:
    assert json_of(app, "list", tmp_path / "job") == []
    assert "there is no checkpoint" in run(app, "list", tmp_path / "job").stdout
    with pytest.raises(UsageError, match="there is no checkpoint"):
        run(app, "list", tmp_path / "job", "--verify")
    assert not list(tmp_path.iterdir())


def test_verifying_reads_every_byte(place: str) -> None:
    assert problems(place, "--verify") == [""] * 3
    damage(Repository(place).list()[1], "model.safetensors", flip)
    assert problems(place) == [""] * 3, "lengths are right"
    with pytest.raises(CheckpointDamaged, match="1 of 3 checkpoints are damaged") as raised:
        run(app, "list", place, "--verify")
    assert raised.value.exit_code == 65
    shown = CliRunner().invoke(app, ["list", place, "--verify"]).stdout
    assert "step-000000000020 is damaged: model.safetensors: it fails its checksum" in shown
    assert "step-000000000030: whole" in shown
    (one,) = json_of(app, "list", f"{place}/step-000000000030", "--verify")
    assert one["step"] == 30
    for step, error in ((20, CheckpointDamaged), (40, UsageError)):
        with pytest.raises(error):
            run(app, "list", f"{place}/step-{step:012d}", "--verify")


def test_pruning_keeps_the_newest(place: str) -> None:
    assert "would remove" in run(app, "prune", place, "--keep", 2, "--dry-run").stdout
    assert len(json_of(app, "list", place)) == 3
    assert [one["step"] for one in json_of(app, "prune", place, "--keep", 1)] == [10, 20]
    assert [one["step"] for one in json_of(app, "list", place)] == [30]
    assert "nothing to remove" in run(app, "prune", place, "--keep", 1).stdout
    assert run(app, "prune", place, "--keep", 0).exit_code == 2
