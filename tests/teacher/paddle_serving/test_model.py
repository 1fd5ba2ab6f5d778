"""Which models Paddle Serving is given; its environment's interpreter is stood in for."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import ModelError, UsageError
from edl.proto.specs import TensorSpec
from edl.teacher.paddle_serving.model import open_model

SAID = (
    '{"paddle": "3.3.1", "inputs": [["image", "uint8", [-1, 3, 8, 8]]], '
    '"outputs": [["y", "float32", [-1, 10]], ["z", "bfloat16", [-1]]]}'
)


def interpreter(folder: Path, *lines: str) -> Path:
    """A program that says these lines whatever it is given."""
    file = folder / "python"
    file.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines)]) + "\n")
    file.chmod(0o755)
    return file


def saved(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("")
    return folder


def test_the_serving_environment_says_what_the_model_is(tmp_path: Path) -> None:
    folder = saved(tmp_path, "net.pdmodel", "net.pdiparams")
    model = open_model(str(folder), interpreter(tmp_path, "a warning", SAID))
    assert (model.program, model.weights) == (folder / "net.pdmodel", folder / "net.pdiparams")
    assert model.paddle == "3.3.1"
    assert model.inputs == (TensorSpec("image", "UINT8", (-1, 3, 8, 8)),)
    assert model.outputs == (TensorSpec("y", "FP32", (-1, 10)), TensorSpec("z", "BF16", (-1,)))


def test_the_format_of_paddle_3_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder = saved(tmp_path, "net.json", "net.pdiparams")
    with pytest.raises(ModelError, match="FLAGS_enable_pir_api=0"):
        open_model(str(folder), interpreter(tmp_path, SAID))


def test_no_model_is_told_from_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model"):
        open_model(str(tmp_path), interpreter(tmp_path, SAID))


def test_an_interpreter_without_paddle_is_told_of(tmp_path: Path) -> None:
    folder = saved(tmp_path, "net.pdmodel", "net.pdiparams")
    with pytest.raises(ModelError, match=r"No module named paddle.*make serving-env"):
        open_model(str(folder), interpreter(tmp_path, "No module named paddle"))
    with pytest.raises(UsageError, match="make serving-env"):
        open_model(str(folder), tmp_path / "nowhere" / "python")


def test_a_dtype_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, "net.pdmodel", "net.pdiparams")
    with pytest.raises(ModelError, match="dtype complex64"):
        open_model(str(folder), interpreter(tmp_path, SAID.replace("uint8", "complex64")))
