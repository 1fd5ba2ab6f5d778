"""Security between processes: TLS, bearer tokens, roles, and the proof of a teacher's instance.

Import the module that you need. This file imports nothing, because a process that only passes
settings on (`credentials`) must not load gRPC.
"""
