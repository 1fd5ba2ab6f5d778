"""Networks of PyTorch as factories, and what their labels are."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from edl.proto.arena import Array

NAME: Final = "edl.tests.gpu.networks"
FEATURES: Final = 16
CLASSES: Final = 10
Factory = tuple[torch.nn.Module, list[torch.Tensor]]

#: What the device of `greedy` has, and what of it a row takes whose first number is 1.
MEMORY_MIB: Final = 1024
MIB: Final = 1 << 20


class _Linear(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not looked into
    def __init__(self) -> None:
        super().__init__()
        noise = np.random.default_rng(3).standard_normal((FEATURES, CLASSES), np.float32)
        self.matrix = torch.nn.Parameter(torch.from_numpy(noise))

    def forward(self, x: Any) -> Any:
        return {"logits": x @ self.matrix}


def linear() -> Factory:
    """The cheapest network."""
    return _Linear().eval(), [torch.zeros(1, FEATURES)]


def logits_of(x: Array) -> Array:
    """The labels by `linear` and by `greedy`."""
    with torch.inference_mode():
        logits: Array = linear()[0](torch.from_numpy(x.copy()))["logits"].numpy()
    return logits


class _Greedy(_Linear):
    """A batch needs as many MiB for each row as the greatest first number of its rows says."""

    def forward(self, x: Any) -> Any:
        needed_mib = len(x) * int(x[:, 0].max().clamp(min=0))
        if x.device.type == "cpu" and needed_mib > MEMORY_MIB:
            raise torch.OutOfMemoryError(f"out of memory: {needed_mib} MiB")
        torch.empty(needed_mib * MIB, dtype=torch.uint8, device=x.device)
        return super().forward(x)


def greedy() -> Factory:
    """One whose device has little memory: on a GPU this process may use MEMORY_MIB of it."""
    if torch.cuda.is_available():
        _, whole = torch.cuda.mem_get_info()
        # What the weights and the libraries take comes on top.
        torch.cuda.set_per_process_memory_fraction((MEMORY_MIB + 64) * MIB / whole)
    return _Greedy().eval(), [torch.zeros(1, FEATURES)]


class Heavy(torch.nn.Module):  # type: ignore[misc]  # as above
    """Products of matrices, for long enough that a device's time can be told from a call's."""

    def __init__(self, size: int, times: int) -> None:
        super().__init__()
        noise = np.random.default_rng(5).standard_normal((size, size), np.float32)
        self.matrix = torch.nn.Parameter(torch.from_numpy(noise) / size**0.5)
        self.times = times

    def forward(self, x: Any) -> Any:
        for _ in range(self.times):
            x = torch.tanh(x @ self.matrix)
        return x


def heavy(device: str) -> Heavy:
    """Some milliseconds of work on that device for 64 rows or fewer."""
    return Heavy(8192, 20) if device == "cuda" else Heavy(512, 20)


def heavy_teacher() -> Factory:
    """`heavy` for a GPU if there is one, else for the CPU."""
    network = heavy("cuda" if torch.cuda.is_available() else "cpu")
    return network.eval(), [torch.zeros(1, len(network.matrix))]


class _TakingBytes(torch.nn.Module):  # type: ignore[misc]  # as above
    def forward(self, image: Any) -> Any:
        return {"logits": image.float().flatten(1)[:, :64]}


def taking_bytes() -> Factory:
    """The cheapest network for bytes of pictures."""
    return _TakingBytes().eval(), [torch.zeros(1, 3, 224, 224, dtype=torch.uint8)]
