"""CPU time to encode and decode one batch, by our codec and by plain protobuf.

Both run in one process, without gRPC, and with the default allocator of the C library. So the
figures compare how often bytes are copied, and how much fresh memory is filled: page faults are
most of protobuf's time. There is no goal.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..proto import inference_pb2 as pb
from ..proto import tensors
from ..proto.arena import Array
from ..proto.clients import LabelRequest
from ..proto.datatypes import datatype_of, dtype_of
from .report import BenchmarkReport, Estimate, Row, cpu_s, interleaved

#: 32 images, as uint8 of a loader (4.8 MB) and as float32 of a model (19.3 MB).
SHAPE = (32, 3, 224, 224)
DTYPES = ("uint8", "float32")


def run(quick: bool) -> BenchmarkReport:
    """Return a row for each dtype, with the CPU time of a batch in ms.

    `times_faster` is protobuf's time / our codec's, the median over rounds; `low` to `high` is its
    95 % interval.
    """
    repeats = 2 if quick else 20
    return BenchmarkReport([_row(np.ones(SHAPE, dtype), repeats) for dtype in DTYPES])


def _row(array: Array, repeats: int) -> Row:
    codec_s, protobuf_s = interleaved(
        partial(cpu_s, partial(with_codec, array), repeats),
        partial(cpu_s, partial(with_protobuf, array), repeats),
    )
    return {
        "dtype": str(array.dtype),
        "mb": array.nbytes / 1e6,
        "codec_ms": Estimate.of(codec_s).value * 1e3,
        "protobuf_ms": Estimate.of(protobuf_s).value * 1e3,
        **Estimate.of_ratio(protobuf_s, codec_s).columns("times_faster"),
    }


def with_codec(array: Array) -> Array:
    """Encode and decode a request with our codec."""
    data = tensors.encode_request("m", LabelRequest({"x": array}))
    return tensors.decode_request(data).inputs["x"]


def with_protobuf(array: Array) -> Array:
    """Encode and decode a request with code that is generated from the .proto file."""
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="x", datatype=datatype_of(array.dtype), shape=array.shape
    )
    request = pb.ModelInferRequest(
        model_name="m", inputs=[tensor], raw_input_contents=[array.tobytes()]
    )
    received = pb.ModelInferRequest.FromString(request.SerializeToString())
    (metadata,) = received.inputs
    dtype = dtype_of(metadata.datatype)
    return np.frombuffer(received.raw_input_contents[0], dtype).reshape(tuple(metadata.shape))
