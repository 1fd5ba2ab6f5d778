"""Batches in, soft labels out: a teacher is one server with one model, and this is its folder.

`open_backend` and `run_in_micro_batches` label in-process what a served teacher labels over the
wire, bit for bit at the same settings. `serving` is the server itself, `cli` its command line.
"""

from ..proto.datatypes import TensorSpec
from .backends import Backend, ModelSpec
from .backends.selection import open_backend
from .config import PredictorConfig, ServerConfig, TeacherConfig
from .microbatch import run_in_micro_batches

__all__ = [
    "Backend",
    "ModelSpec",
    "PredictorConfig",
    "ServerConfig",
    "TeacherConfig",
    "TensorSpec",
    "open_backend",
    "run_in_micro_batches",
]
