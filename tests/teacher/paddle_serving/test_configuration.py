"""What is written for the server to read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edl.errors import ModelError
from edl.proto.specs import TensorSpec
from edl.teacher.paddle_serving.configuration import Model, write


@pytest.fixture
def model(tmp_path: Path) -> Model:
    for name in ("net.pdmodel", "net.pdiparams"):
        (tmp_path / name).write_text(name)
    return Model(
        tmp_path / "net.pdmodel",
        tmp_path / "net.pdiparams",
        "3.3.1",
        (TensorSpec("image", "UINT8", (-1, 3, -1, 8)), TensorSpec('a"b', "INT64", (-1,))),
        (TensorSpec("y", "FP32", (-1, 10)),),
    )


def test_the_model_is_beside_what_it_takes_and_gives(model: Model, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    file = write(folder, model, port=4321, calls=6, device="cpu", threads=3)
    config = json.loads(file.read_text())
    assert (config["rpc_port"], config["worker_num"]) == (4321, 6)
    assert "http_port" not in config  # upstream's gateway listens on every interface
    local = config["op"]["model"]["local_service_conf"]
    assert (local["device_type"], local["devices"], local["thread_num"]) == (0, "", 3)
    assert local["fetch_list"] == ["y"]
    beside = Path(local["model_config"])
    assert (beside / "net.pdmodel").read_text() == "net.pdmodel"
    assert (beside / "net.pdiparams").read_text() == "net.pdiparams"
    lines = (beside / "serving_server_conf.prototxt").read_text().split("\n")
    assert lines[:8] == [
        "feed_var {",
        '  name: "image"',
        '  alias_name: "image"',
        "  is_lod_tensor: false",
        "  feed_type: 7",
        "  shape: 3",
        "  shape: -1",
        "  shape: 8",
    ]
    assert '  name: "a\\"b"' in lines
    assert lines.count("fetch_var {") == 1
    assert "  fetch_type: 1" in lines


def test_a_gpu_is_named_by_its_number(model: Model, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    config = json.loads(
        write(folder, model, port=1, calls=1, device="gpu:2", threads=1).read_text()
    )
    local = config["op"]["model"]["local_service_conf"]
    assert (local["device_type"], local["devices"], local["use_mkldnn"]) == (1, "2", False)


def test_a_datatype_without_a_number_is_refused(model: Model, tmp_path: Path) -> None:
    odd = replace(model, outputs=(TensorSpec("y", "UINT64", (-1, 2)),))
    folder = tmp_path / "server"
    folder.mkdir()
    with pytest.raises(ModelError, match="no UINT64, which 'y' is of"):
        write(folder, odd, port=1, calls=1, device="cpu", threads=1)
