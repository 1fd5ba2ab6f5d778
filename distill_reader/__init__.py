"""The loader that has batches labelled by teachers: `DistilReader`, for users.

Importing it is light: gRPC, Redis and the rules live in the engine, a process of its own.
"""

from .reader import DistilReader
from .stats import ReaderStats

__all__ = ["DistilReader", "ReaderStats"]
