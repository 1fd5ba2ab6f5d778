"""Process groups of PyTorch, and its tensors in collectives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final

from ...proto.arena import Array
from ...runtime.addresses import is_loopback

#: Longest wait in a collective; a rank that hangs is ended by its supervisor long before.
_TIMEOUT: Final = timedelta(hours=1)


class TorchTensors:
    """The operations of `groups.TensorOps` on PyTorch's tensors.

    Args:
        device: device of this rank, and of the tensors of collectives.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def open_store(self, rank: int, endpoints: Sequence[str]) -> Any:
        import torch.distributed as dist

        host, _, port = endpoints[0].rpartition(":")
        host = host.strip("[]")
        if is_loopback(host):  # gloo would look the host's own name up
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        world = len(endpoints)
        return dist.TCPStore(host, int(port), world, rank == 0, _TIMEOUT, wait_for_workers=False)

    def form_group(self, store: Any, rank: int, world: int) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo" if self._device == "cpu" else "nccl",
            store=store,
            rank=rank,
            world_size=world,
            timeout=_TIMEOUT,
        )

    def no_grad(self) -> AbstractContextManager[Any]:
        import torch

        found: AbstractContextManager[Any] = torch.no_grad()
        return found

    def gather(self, ours: Array, world: int) -> Array:
        import torch
        import torch.distributed as dist

        tensor = torch.from_numpy(ours).to(self._device)
        theirs = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=self._device)
        dist.all_gather(list(theirs), tensor)
        found: Array = theirs.cpu().numpy()
        return found

    def broadcast(self, tensor: Any) -> None:
        import torch.distributed as dist

        dist.broadcast(tensor, src=0)

    def begin_sum(self, tensor: Any) -> Callable[[], object]:
        import torch.distributed as dist

        wait: Callable[[], object] = dist.all_reduce(tensor, async_op=True).wait
        return wait

    def average(self, tensor: Any, world: int) -> None:
        total = tensor.float()
        if total is tensor:
            total = tensor.clone()
        self.begin_sum(total)()
        tensor.copy_(total / world)

    def floats(self, rows: Sequence[tuple[float, float]]) -> Any:
        import torch

        return torch.tensor(list(rows), dtype=torch.float32, device=self._device)

    def is_trained(self, parameter: Any) -> bool:
        return bool(parameter.requires_grad)

    def nbytes(self, parameter: Any) -> int:
        return int(parameter.numel() * parameter.element_size())

    def gradient_kind(self, parameter: Any) -> tuple[float, float]:
        gradient = parameter.grad
        return (0.0, 0.0) if gradient is None else (1.0, float(gradient.is_sparse))

    def join(self, parameters: Sequence[Any]) -> Any:
        import torch

        return torch.cat([_gradient(one).reshape(-1) for one in parameters])

    def set_gradients(
        self, joined: Any, parameters: Sequence[Any], kinds: Sequence[tuple[bool, bool]]
    ) -> None:
        parts = joined.split([one.numel() for one in parameters])
        for one, part, (present, sparse) in zip(parameters, parts, kinds, strict=True):
            if present:
                summed = part.reshape(one.shape)
                one.grad = _sparse(summed) if sparse else summed


def _gradient(parameter: Any) -> Any:
    import torch

    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return (gradient.to_dense() if gradient.is_sparse else gradient).to(parameter.dtype)


def _sparse(summed: Any) -> Any:
    """Return a sparse tensor of the rows that are not all zeros."""
    import torch

    rows = (summed != 0).flatten(1).any(dim=1).nonzero().flatten()
    return torch.sparse_coo_tensor(
        rows[None], summed[rows], summed.shape, check_invariants=True, is_coalesced=True
    )
