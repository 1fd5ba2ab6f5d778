"""PyTorch's files: which of its formats one is, and what an exported program says of itself."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import ModelError
from ..model import FREE

#: Operators that do something else in training, and which argument says so.
_TRAINING = {"aten.dropout.default": 2, "aten.batch_norm.default": 5}


def is_exported(file: Path) -> bool:
    """Whether `file` is of `torch.export`; False when it is TorchScript.

    Raises:
        ModelError: it is neither. Pickles are not opened: they can run anything.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            names = {PurePosixPath(name).name for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{file} cannot be read as a file of PyTorch ({error}): write one with "
            "torch.export.save or torch.jit.save"
        ) from None
    if {"archive_format", "serialized_exported_program.json"} & names:
        return True
    if "constants.pkl" in names:
        return False
    raise ModelError(
        f"{file} holds weights or pickled objects, not a network: name a function that builds the "
        "network and loads them (--model module:function), or save the network with "
        "torch.export.save or torch.jit.save (torch.save writes a pickle, of a whole network too)"
    )


def load_exported(torch: Any, file: Path, device: Any) -> Any:
    """The program, its weights on `device`; torch's errors are the caller's to translate.

    Raises:
        ModelError: it was exported for training.
    """
    program = torch.export.load(str(file))
    for node in program.graph.nodes:
        position = _TRAINING.get(str(node.target))
        if position is not None and node.args[position : position + 1] == (True,):
            raise ModelError(
                f"{file} was exported for training: call eval() on the network before torch.export"
            )
    if device.type == "cpu":
        return program
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, str(device))


def inputs_of(program: Any, file: Path) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Name, dtype and shape of each input, in the order of the program's call.

    Raises:
        ModelError: an input is no tensor.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name in program.graph_signature.user_inputs:
        value = values.get(name)
        if value is None or not hasattr(value, "dtype"):
            raise ModelError(f"{file}: input {name!r} is no tensor; a teacher takes tensors alone")
        yield name, value.dtype, tuple(_size(size) for size in value.shape)


def _size(size: object) -> int:
    """Symbols stand for free sizes."""
    return size if isinstance(size, int) else FREE
