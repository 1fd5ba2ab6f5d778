"""Batches in, soft labels out: a teacher is one server with one model, and this is its folder.

`open_backend` and `run_in_micro_batches` label in-process what a served teacher labels over the
wire, bit for bit at the same settings. `serving` is the server itself, `cli` its command line.
"""

from .backends import Backend
from .backends.open import open_backend
from .config import PredictorConfig, ServerConfig, TeacherConfig
from .microbatch import run_in_micro_batches
from .model import ModelSpec, TensorSpec

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
