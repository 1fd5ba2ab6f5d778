"""A network in a loop of plain PyTorch, with nothing of ours around it: `python -m` this.

    python -m edl.benchmarks.teaching.bare_torch CHANNEL MODEL DEVICE ROWS TOP

MODEL is a factory (`module:function`) and DEVICE a device of torch. Told "run" with a number of
batches, it answers how many seconds they took: bytes from the host's memory to the device, the
network, and the TOP greatest logits back.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from ...proto.channel import Channel
from ...supervise import end_with_parent
from .networks import picture

#: Batches that choose kernels and grow memory.
_WARM_UP = 10


def main(channel_fd: int, model: str, device: str, rows: int, top: int) -> None:
    """Load the network, say so, and run it when told."""
    end_with_parent(at_once=True)
    import torch

    channel = Channel.attach(channel_fd)
    # As a teacher computes: in the whole of float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    module, _, function = model.partition(":")
    network, _ = getattr(importlib.import_module(module), function)()
    network = network.to(device).eval()
    batch = picture(rows)

    def label() -> tuple[Any, Any]:
        logits = network(torch.from_numpy(batch).to(device))["logits"]
        values, classes = logits.topk(top)
        return values.half().cpu().numpy(), classes.cpu().numpy()

    with torch.inference_mode():
        for _ in range(_WARM_UP):
            label()
        channel.send("ready")
        for message in channel:
            began_s = time.perf_counter()
            for _ in range(message["batches"]):
                label()
            channel.send("ran", seconds=time.perf_counter() - began_s)


if __name__ == "__main__":
    fd, factory, where, *numbers = sys.argv[1:]
    main(int(fd), factory, where, *map(int, numbers))
