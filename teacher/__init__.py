"""A teacher: a server that labels batches with one model.

`open_backend` and `run_in_micro_batches` label batches in the calling process. The labels have the
same bits as a teacher's if the machines are equal, the teacher merges no requests, and the process
has the teacher's settings, micro-batch and environment variables (`config.PredictorConfig`).
`serving` runs the server, `cli` is its command line.
"""

from ..proto.datatypes import TensorSpec
from .backends import Backend, ModelSpec, run_in_micro_batches
from .backends.selection import open_backend

__all__ = [
    "Backend",
    "ModelSpec",
    "TensorSpec",
    "open_backend",
    "run_in_micro_batches",
]
