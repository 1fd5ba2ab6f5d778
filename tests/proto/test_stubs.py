"""inference.proto is the public protocol. Whether the stubs are up to date, `make check` says."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool

from edl.proto import inference_pb2 as pb

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


def test_every_message_and_method_is_that_of_a_stock_client() -> None:
    stock = stock_descriptors()
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        theirs = fields(stock.FindMessageTypeByName(f"inference.{name}"))
        if name in PARTLY:
            assert fields(message)["own"].items() <= theirs["own"].items(), name
        else:
            assert fields(message) == theirs, name
    service = stock.FindServiceByName("inference.GRPCInferenceService")
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        stocks = service.methods_by_name[method.name]
        assert method.input_type.full_name == stocks.input_type.full_name
        assert method.output_type.full_name == stocks.output_type.full_name
        streams = stocks.client_streaming, stocks.server_streaming
        assert (method.client_streaming, method.server_streaming) == streams
