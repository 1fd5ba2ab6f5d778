"""The sockets of a teacher and their protocols: gRPC, HTTP, our own transport, shared memory.

Everything with asyncio runs in one event loop, on a thread of its own.
"""
