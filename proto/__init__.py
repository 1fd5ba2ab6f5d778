"""The wire: what processes of the mesh say to each other, and how it lies in bytes.

Import the module that you need (`from edl.proto import tensors`). This file stays empty of imports:
`arena` and `channel` are used where neither gRPC nor protobuf may be loaded.
"""
