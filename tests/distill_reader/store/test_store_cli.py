"""`edl store`: what operators see of a store, and what comes out of it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.cli import app
from edl.distill_reader.store.rows import ArraySpec, ModelId, ServiceModel, keys_of, layout_of, pack
from edl.distill_reader.store.store import LabelDatabase
from edl.proto.forms import LabelForm, decode, encode
from edl.runtime.errors import LabelStoreUnavailable, StoreDamaged, UsageError
from edl.tests.cli_output import json_of, run
from edl.tests.distill_reader.store.samples import (
    CLASSES,
    CONTENT,
    damage,
    inputs_of,
    logits_of,
    rows_in,
    sample_keys,
)

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> str:
    settings = LabelStore(tmp_path / "labels", 64 * MIB)
    with LabelDatabase(settings) as store:
        store.put_many(sample_keys(range(600)), rows_in(None, range(600)))
        topk = LabelForm.parse("topk:5", 2.0)
        store.put_many(sample_keys(range(1000, 1010)), rows_in(topk, range(1000, 1010)))
        store.get_many(sample_keys(range(200, 800)))
        store.remember("resnet", ServiceModel(CONTENT, ("x",)))
    return settings.path


def loaded(folder: Path) -> list[dict[str, Any]]:
    """The arrays of each file of an export."""
    shards = []
    for one in json.loads((folder / "labels.json").read_text())["files"]:
        with np.load(folder / one["file"], allow_pickle=False) as shard:
            shards.append(dict(shard))
            assert len(shard["sample_key"]) == one["rows"]
    return shards


def numbers_in(shard: dict[str, Any]) -> list[int]:
    """Which samples of the first 600 a file holds."""
    numbers = {key: number for number, key in enumerate(sample_keys(range(600)))}
    return [numbers[bytes(key)] for key in shard["sample_key"]]


def test_inspect(path: str) -> None:
    stock = json_of(app, "inspect", path)
    assert stock["rows"] == 610
    assert stock["disk_bytes"] >= stock["used_bytes"] > 600 * 4 * CLASSES
    assert [kind["rows"] for kind in stock["kinds"]] == [600, 10]
    assert stock["kinds"][0]["outputs"] == ["logits FP32[50]"]
    assert stock["kinds"][1]["outputs"] == ["logits topk:5 T=2 FP16[5] UINT8[5] FP32[]"]
    assert stock["services"] == {"resnet": "content-1"}
    assert (stock["counters"]["hits"], stock["counters"]["misses"]) == (400, 200)
    assert "610 rows" in run(app, "inspect", path).stdout


def test_verify_names_what_is_damaged_and_changes_nothing(path: str) -> None:
    assert json_of(app, "inspect", path, "--verify") == {"rows": 610, "damaged": 0}
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE labels SET data = zeroblob(length(data)) WHERE id % 100 = 0")
    connection.close()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="6 of 610 rows are damaged") as raised:
            run(app, "inspect", path, "--verify")
    assert raised.value.exit_code == 65


def test_verify_of_a_broken_file(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (Path(path).stat().st_size - 8192))
    with pytest.raises(StoreDamaged):
        run(app, "inspect", path, "--verify")


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
@pytest.mark.parametrize("number", [255, 609])
def test_verify_ends_though_keys_are_out_of_order(path: str, byte: bytes, number: int) -> None:
    """Of the last row of a query, and of the last one of all."""
    key = sorted([*sample_keys(range(600)), *sample_keys(range(1000, 1010))])[number]
    file = Path(path)
    file.write_bytes(file.read_bytes().replace(key, byte * 16))
    with pytest.raises(StoreDamaged, match=r"[1-9]\d? of 610 rows are damaged"):
        run(app, "inspect", path, "--verify")


def test_disown_ends_though_keys_are_out_of_order(path: str) -> None:
    key = sorted([*sample_keys(range(600)), *sample_keys(range(1000, 1010))])[255]
    file = Path(path)
    file.write_bytes(file.read_bytes().replace(key, bytes(16)))
    with pytest.raises(LabelStoreUnavailable, match="out of order"):
        run(app, "disown", path, "liar")


def test_inspect_of_damaged_numbers(path: str) -> None:
    damage(path, "UPDATE keys SET made = 'x', used = x'00', nbytes = 'x'")
    damage(path, "UPDATE counters SET value = x'00'")
    (kind, _) = json_of(app, "inspect", path)["kinds"]
    assert (kind["made"], kind["used"], kind["bytes"]) == ([0, 0], [0, 0], 0)
    assert "610 rows" in run(app, "inspect", path).stdout


def test_inspect_shows_brackets_of_names(path: str) -> None:
    with LabelDatabase(LabelStore(path, 64 * MIB)) as store:
        store.put_many([b"o" * 16], rows_in(None, [1], output="y[main]"))
    assert "y[main] FP32[50]" in run(app, "inspect", path).stdout


@pytest.mark.parametrize("options", [(), ("--verify",)])
def test_there_is_none(tmp_path: Path, options: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="there is no label store at"):
        run(app, "inspect", tmp_path / "labels", *options)
    assert not list(tmp_path.iterdir()), "looking makes nothing"


def test_disown(path: str) -> None:
    rows = [replace(row, makers=frozenset(["liar"])) for row in rows_in(None, range(2000, 2050))]
    with LabelDatabase(LabelStore(path, 64 * MIB)) as store:
        store.put_many(sample_keys(range(2000, 2050)), rows)
    assert "50 rows of liar deleted" in run(app, "disown", path, "liar").stdout
    stock = json_of(app, "inspect", path)
    assert stock["rows"] == 610
    assert stock["counters"]["disowned"] == 50
    with pytest.raises(UsageError, match="there is no label store at"):
        run(app, "disown", path + "-gone", "liar")


def test_export_as_kept(path: str, tmp_path: Path) -> None:
    index = json_of(app, "export", path, tmp_path / "out", "--rows-per-file", 250)
    assert index["rows"] == 610
    assert sorted(one["rows"] for one in index["files"]) == [10, 100, 250, 250]
    form = {"form": "topk:5", "temperature": 2.0, "classes": CLASSES}
    assert [one["forms"] for one in index["files"] if one["rows"] == 10] == [{"logits": form}]
    seen: list[int] = []
    for shard in loaded(tmp_path / "out"):
        if "logits" in shard:
            seen += numbers_in(shard)
            logits = logits_of(inputs_of(numbers_in(shard)))
            np.testing.assert_array_equal(shard["logits"], logits)
        else:
            assert set(shard) >= {"logits.values", "logits.indices", "logits.tail"}
    assert sorted(seen) == list(range(600))


def test_export_in_a_form_skips_what_cannot_have_it(path: str, tmp_path: Path) -> None:
    index = json_of(app, "export", path, tmp_path / "out", "--form", "topk:7,dense=on")
    assert (index["rows"], index["skipped"]) == (600, 10)
    form = LabelForm.parse("topk:7")
    assert form is not None
    for shard in loaded(tmp_path / "out"):
        sent = encode("y", logits_of(inputs_of(numbers_in(shard))), form)
        dense = decode("y", sent, form, form.parameters(CLASSES))
        np.testing.assert_array_equal(shard["logits"], dense)


@pytest.mark.parametrize(
    ("labels", "form", "kept"),
    [([[0, 1], [1e6, 2], [3, 4]], "float16", [0, 2]), ([0, 1, 2], "float32,dense=on", [0, 1, 2])],
    ids=["a row beyond the form", "one number per sample"],
)
def test_export_skips_only_rows_beyond_the_form(
    tmp_path: Path, labels: Any, form: str, kept: list[int]
) -> None:
    labels = np.array(labels, np.float32)
    layout = layout_of(CONTENT, {"y": (None, None, [labels])}, whole=True)
    with LabelDatabase(LabelStore(tmp_path / "labels", MIB)) as store:
        store.put_many(sample_keys(range(3)), pack(layout, [labels]))
    index = json_of(app, "export", tmp_path / "labels", tmp_path / "out", "--form", form)
    assert (index["rows"], index["skipped"]) == (len(kept), 3 - len(kept))
    (arrays,) = loaded(tmp_path / "out")
    assert sorted(numbers_in(arrays)) == kept
    np.testing.assert_array_equal(arrays["y"], labels[numbers_in(arrays)])


def test_export_to_a_folder_that_cannot_be(path: str, tmp_path: Path) -> None:
    with pytest.raises(LabelStoreUnavailable, match="cannot be written"):
        run(app, "export", path, tmp_path / ("long" * 100))


def test_export_with_the_ids_of_the_user(tmp_path: Path) -> None:
    ids = np.arange(20, dtype=np.int64) * 3
    labels = logits_of(inputs_of(range(20))).astype(ml_dtypes.bfloat16)
    layout = layout_of(CONTENT, {"y": (LabelForm.parse("bfloat16"), None, [labels])}, whole=True)
    layout = replace(layout, ids=(ArraySpec.of(ids),))
    with LabelDatabase(LabelStore(tmp_path / "labels", MIB)) as store:
        keys = keys_of(CONTENT, {"x": inputs_of(range(20))}, 0, 20, [ids])
        store.put_many(keys, pack(layout, [ids, labels]))
    json_of(app, "export", tmp_path / "labels", tmp_path / "out")
    (arrays,) = loaded(tmp_path / "out")
    order = np.argsort(arrays["sample_id.0"])
    np.testing.assert_array_equal(arrays["sample_id.0"][order], ids)
    np.testing.assert_array_equal(arrays["y"][order], labels.astype(np.float32))


def test_export_of_an_empty_store_names_the_cause(tmp_path: Path) -> None:
    store = LabelStore(tmp_path / "labels", MIB)
    LabelDatabase(store).close()
    for options in ((), ("--content", "content-1")):
        with pytest.raises(UsageError, match="holds no labels"):
            run(app, "export", store.path, str(tmp_path / "out"), *options)


def test_export_of_several_contents_wants_one_named(path: str, tmp_path: Path) -> None:
    with LabelDatabase(LabelStore(path, 64 * MIB)) as store:
        layout = layout_of(ModelId("other"), {"y": (None, None, [inputs_of([1])])})
        store.put_many([b"o" * 16], pack(layout, [inputs_of([1])]))
    with pytest.raises(UsageError, match=r"name one content.*content-1, other"):
        run(app, "export", path, tmp_path / "out")
    assert json_of(app, "export", path, tmp_path / "out", "--content", "other")["rows"] == 1
    with pytest.raises(UsageError, match="holds an export already"):
        run(app, "export", path, tmp_path / "out", "--content", "other")


def test_contents_that_differ_in_numerics_alone_can_be_named(path: str, tmp_path: Path) -> None:
    with LabelDatabase(LabelStore(path, 64 * MIB)) as store:
        exact = CONTENT._replace(numerics_id="n1")
        layout = layout_of(exact, {"y": (None, None, [inputs_of([1])])})
        store.put_many([b"o" * 16], pack(layout, [inputs_of([1])]))
    for name, rows in (("content-1", 610), ("content-1/n1", 1)):
        folder = tmp_path / str(rows)
        assert json_of(app, "export", path, folder, "--content", name)["rows"] == rows
