"""Our side of Paddle Serving's protocols against what Paddle Serving itself ships."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from edl.proto.paddle_serving import general_model_pb2, pipeline_pb2
from edl.supervise import Command, start
from edl.tests.interop.paddle_serving import serving_python
from edl.tests.paddle_serving_servers import GeneralModel, labels, serving
from edl.tests.proto.test_stubs import fields

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CLIENT = Path(__file__).parent / "programs" / "paddle_http_client.py"
CLIENT_S = 60.0
CONFIG = """
feed_var { name: "x" alias_name: "x" is_lod_tensor: false feed_type: %d shape: 6 }
fetch_var { name: "fc_0.tmp_1" alias_name: "y" is_lod_tensor: false fetch_type: 1 shape: 3 }
"""


def shipped(path: str) -> Any:
    """The descriptors in a file of generated code, read without importing it."""
    site = next((serving_python().parent.parent / "lib").glob("python3*/site-packages"))
    for node in ast.walk(ast.parse((site / path).read_text())):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            return DescriptorPool().AddSerializedFile(ast.literal_eval(node.value))
    raise AssertionError(f"{path} holds no descriptors")


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("paddle_serving_server/pipeline/proto/pipeline_service_pb2.py", pipeline_pb2.DESCRIPTOR),
        ("paddle_serving_server/proto/general_model_service_pb2.py", general_model_pb2.DESCRIPTOR),
    ],
)
def test_messages_and_methods_are_those_that_are_shipped(path: str, ours: FileDescriptor) -> None:
    theirs = shipped(path)
    assert ours.package == theirs.package
    assert set(ours.message_types_by_name) == set(theirs.message_types_by_name)
    for name, message in ours.message_types_by_name.items():
        assert fields(message) == fields(theirs.message_types_by_name[name]), name
    for name, service in ours.services_by_name.items():
        others = theirs.services_by_name[name].methods
        assert [(m.name, m.input_type.full_name, m.output_type.full_name) for m in others] == [
            (m.name, m.input_type.full_name, m.output_type.full_name) for m in service.methods
        ]


@pytest.mark.parametrize(("number", "dtype"), [(0, "int64"), (1, "float32"), (2, "int32")])
def test_the_original_client_is_answered(tmp_path: Path, number: int, dtype: str) -> None:
    x = (np.arange(30).reshape(5, 6) - 7).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "conf.prototxt").write_text(CONFIG % number)
    files = [str(tmp_path / name) for name in ("conf.prototxt", "x.npy", "y.npy")]
    servicer = GeneralModel()
    with serving(servicer) as address:
        argv = (str(serving_python()), "-I", str(CLIENT), address, files[0], "x", "y", *files[1:])
        client = start(Command("http-client", argv, cwd=tmp_path, guard=True))
        assert client.wait(CLIENT_S) == 0, client.tail()
    y = np.load(tmp_path / "y.npy")
    assert y.tobytes() == labels(x).tobytes()
    (asked,) = servicer.requests
    assert (list(asked.fetch_var_names), asked.log_id) == (["y"], 42)
