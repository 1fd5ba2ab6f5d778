"""Reads the name of a device, which every backend takes in the same words."""

from __future__ import annotations

from ...errors import ModelError


def gpu_of(device: str) -> int | None:
    """The number of the GPU that `device` names, None for the CPU.

    Raises:
        ModelError: it is neither "cpu" nor "gpu:N".
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return None
    if kind != "gpu" or not (number or "0").isdigit():
        raise ModelError(f"unknown device {device!r}: expected cpu or gpu:N")
    return int(number or 0)


def check_gpu(device: str, index: int, count: int) -> None:
    """Raise ModelError where there are not so many GPUs."""
    if index >= count:
        raise ModelError(f"device {device} asked for, but there are {count} GPUs")
