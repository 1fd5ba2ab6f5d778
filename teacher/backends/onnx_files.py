"""Which files an ONNX model consists of: weights beyond two gigabytes lie beside the graph."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError, WireError
from ...proto.wire import Buffer, take_out

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_EXTERNAL_DATA = 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2


def files_of(model: Path) -> list[Path]:
    """The model's file, then those that its weights are in, each once, in the model's order.

    Raises:
        ModelError: the file is not an ONNX model, or names a file that is not there.
    """
    try:
        names = dict.fromkeys(
            name
            for graph in _fields(model.read_bytes(), _MODEL_GRAPH)
            for weight in _fields(graph, _GRAPH_INITIALIZER)
            for name in _location(weight)
        )
    except (OSError, WireError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {model}: {error}") from None
    beside = [model.parent / name for name in names]
    for file in beside:
        if not file.is_file():
            raise ModelError(f"{model} has its weights in {file}, which does not exist")
    return [model, *beside]


def _location(weight: Buffer) -> list[str]:
    """The file of one weight: no name where it lies in the model."""
    entries = {
        bytes(_fields(entry, _ENTRY_KEY)[0]): bytes(_fields(entry, _ENTRY_VALUE)[0]).decode()
        for entry in _fields(weight, _TENSOR_EXTERNAL_DATA)
    }
    return [entries[b"location"]] if b"location" in entries else []


def _fields(message: Buffer, number: int) -> list[memoryview]:
    return take_out(message, number)[1]
