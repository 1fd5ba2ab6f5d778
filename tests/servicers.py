"""Servers of gRPC whose methods are those of a Python object."""

from __future__ import annotations

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


def add_servicer(server: grpc.Server, service: ServiceDescriptor, servicer: object) -> None:
    """Serve the unary methods of a service that `servicer` has, by their names."""
    handlers = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            GetMessageClass(method.input_type).FromString,
            GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
        if hasattr(servicer, method.name)
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service.full_name, handlers),)
    )
