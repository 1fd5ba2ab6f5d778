"""Messages between processes of the mesh, and their bytes.

Import the module that you need (`from edl.proto import tensors`). This file imports nothing,
because `arena` and `channel` are used by processes that must not load gRPC or protobuf.
"""
