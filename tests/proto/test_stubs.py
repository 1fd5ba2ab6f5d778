"""The committed stubs are what the .proto files say, and inference.proto is the public protocol."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool

from edl.proto import inference_pb2 as pb
from edl.tests.leaks import ROOT


def stubs(root: Path) -> str:
    """What `make stubs` says; nothing where they are what the .proto files say."""
    words = ["make", "-s", "stubs", f"VENV={sys.prefix}"]
    return subprocess.run(words, cwd=root, capture_output=True, text=True).stderr


def test_the_committed_stubs_are_up_to_date() -> None:
    assert stubs(ROOT) == ""


def test_stale_and_missing_stubs_are_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "Makefile", tmp_path)
    proto = tmp_path / "proto"
    (proto / "paddle_serving" / "pipeline_pb2.pyi").unlink()
    assert "stale: paddle_serving/pipeline_pb2.pyi; run 'make proto'" in stubs(tmp_path)
    (proto / "inference.proto").write_text("message {")
    assert "inference.proto:1:9: Expected message name" in stubs(tmp_path)


#: Messages of which only what is used is there.
PARTLY = {"ModelConfig"}


#: Fields with this number, or a greater one, are ours: other clients skip them.
FIRST_OF_OURS = 100


def fields(message: Descriptor) -> dict[str, Any]:
    """Everything that matters on the wire to others, for the message and those nested in it."""
    own = {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.message_type and field.message_type.full_name,
            field.containing_oneof and field.containing_oneof.name,
        )
        for field in message.fields
        if field.number < FIRST_OF_OURS
    }
    return {"own": own, **{nested.name: fields(nested) for nested in message.nested_types}}


def stock_descriptors() -> DescriptorPool:
    """Those of tritonclient's stubs, read from its file.

    Importing it beside ours is impossible: one process registers the package `inference` once.
    """
    spec = importlib.util.find_spec("tritonclient")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "grpc"
    pool = DescriptorPool()
    for name in ("model_config_pb2.py", "service_pb2.py"):
        for node in ast.walk(ast.parse((folder / name).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("AddSerializedFile"):
                pool.AddSerializedFile(ast.literal_eval(node.args[0]))
    return pool


def test_every_message_is_that_of_a_stock_client() -> None:
    stock = stock_descriptors()
    ours = pb.DESCRIPTOR.message_types_by_name
    assert len(ours) == 34
    for name, message in ours.items():
        theirs = fields(stock.FindMessageTypeByName(f"inference.{name}"))
        if name in PARTLY:
            assert fields(message)["own"].items() <= theirs["own"].items(), name
        else:
            assert fields(message) == theirs, name


def test_every_method_is_that_of_a_stock_client() -> None:
    stock = stock_descriptors().FindServiceByName("inference.GRPCInferenceService")
    ours = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert len(ours.methods) == 12
    for method in ours.methods:
        theirs = stock.methods_by_name[method.name]
        assert method.input_type.full_name == theirs.input_type.full_name
        assert method.output_type.full_name == theirs.output_type.full_name
        streams = theirs.client_streaming, theirs.server_streaming
        assert (method.client_streaming, method.server_streaming) == streams
