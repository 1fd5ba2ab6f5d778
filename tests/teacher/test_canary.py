"""A canary's file says what it said when it was written, and nothing in it is ever executed."""

from __future__ import annotations

import contextlib
import pickle
import random
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edl.errors import ModelError, UsageError
from edl.teacher.canary import Canary, load_samples

CANARY = Canary(
    "c0ffee",
    2e-3,
    {"image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "a/b": np.ones((2, 1), np.int64)},
    {
        "logits": np.array([[0.5, -3.25], [1e-3, 7.0]], np.float32),
        "hidden": np.array([[1.5], [2.5]], ml_dtypes.bfloat16),
    },
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "canary"  # as it is named: no suffix is added
    CANARY.save(file)
    read = Canary.load(file)
    assert (read.content_id, read.tolerance) == ("c0ffee", 2e-3)
    for kept, came in ((CANARY.inputs, read.inputs), (CANARY.outputs, read.outputs)):
        assert list(kept) == list(came)
        for name, array in kept.items():
            assert came[name].dtype == array.dtype
            np.testing.assert_array_equal(came[name], array)
    assert read.differences(dict(CANARY.outputs)) == {"logits": 0.0, "hidden": 0.0}


def test_a_class_is_kept_only_where_the_model_gives_nothing_else() -> None:
    inputs = {"x": np.ones((1, 2), np.float32)}
    classes = {"class": np.array([3])}
    assert list(Canary.of("c", 1e-3, inputs, {**classes, "logits": np.ones(1)}).outputs) == [
        "logits"
    ]
    assert list(Canary.of("c", 1e-3, inputs, classes).outputs) == ["class"]


def test_differences_are_shares_of_the_greatest_value() -> None:
    changed: dict[str, Any] = dict(CANARY.outputs)
    changed["logits"] = changed["logits"] + np.float32(0.07)
    assert CANARY.differences(changed)["logits"] == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(ModelError, match=r"by 0\.01 of its greatest value, and 0\.002 is tol"):
        CANARY.check(changed)
    changed["logits"] = changed["logits"] * np.nan
    with pytest.raises(ModelError, match="differs from the canary by nan"):
        CANARY.check(changed)


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a canary was unpickled",))


def test_a_file_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    trap = np.array([Trap()], dtype=object)
    with (tmp_path / "trap.npz").open("wb") as file:
        np.savez(file, header=trap)
    (tmp_path / "trap.pkl").write_bytes(pickle.dumps(Trap()))
    for name in ("trap.npz", "trap.pkl"):
        with pytest.raises(ModelError, match="is no canary"):
            Canary.load(tmp_path / name)
    with pytest.raises(UsageError, match="does not hold an array for each of"):
        load_samples(tmp_path / "trap.npz", ["header"])


def test_what_is_no_canary_is_said_to_be_none(tmp_path: Path) -> None:
    CANARY.save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    np.save(tmp_path / "single.npy", np.ones(3))
    contents = [b"", b"{}", whole[: len(whole) // 2], (tmp_path / "other.npz").read_bytes()]
    contents.append((tmp_path / "single.npy").read_bytes())
    for content in contents:
        (tmp_path / "broken").write_bytes(content)
        with pytest.raises(ModelError, match="is no canary"):
            Canary.load(tmp_path / "broken")
    with pytest.raises(ModelError, match=r"cannot read .*missing: No such file"):
        Canary.load(tmp_path / "missing")


def test_whatever_is_damaged_in_a_file_is_said_in_one_line(tmp_path: Path) -> None:
    """Any two bytes of it: a teacher must not end by a traceback of zlib."""
    file, rng, refused = tmp_path / "canary", random.Random(1), 0
    CANARY.save(file)
    whole = file.read_bytes()
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(2):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            Canary.load(file)
            continue
        refused += 1
    assert refused > 200


def test_a_disk_that_is_full_spoils_no_canary(tmp_path: Path) -> None:
    file = tmp_path / "canary"
    CANARY.save(file)
    before = file.read_bytes()
    larger = replace(CANARY, inputs={"x": np.random.default_rng(0).random(1 << 16)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as if: EFBIG for ENOSPC
    try:
        with pytest.raises(UsageError, match=r"cannot write .*canary: File too large"):
            larger.save(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    words = Canary("c", 0.0, {"text": np.array([b"a"], object)}, {})
    with pytest.raises(ModelError, match="BYTES"):
        words.save(tmp_path / "canary")
    with pytest.raises(UsageError, match="cannot write"):
        CANARY.save(tmp_path / "no" / "canary")
    with pytest.raises(UsageError, match="a tolerance is a share from 0 to 1, not 1"):
        Canary("c", 1.0, {}, {})


def test_samples_of_the_user_are_taken_by_the_names_of_the_inputs(tmp_path: Path) -> None:
    file = tmp_path / "samples.npz"
    np.savez(file, x=np.ones((2, 4)), label=np.zeros(2))
    assert list(load_samples(file, ["x"])) == ["x"]
    with pytest.raises(UsageError, match="does not hold an array for each of"):
        load_samples(file, ["y"])
    with pytest.raises(UsageError, match="cannot read"):
        load_samples(tmp_path / "missing.npz", ["x"])
