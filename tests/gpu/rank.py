"""One rank of a training by `torch.distributed`: `torchrun -m` this DEVICE TEACHER FOLDER."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.torch import TorchLoader
from edl.tests.gpu import networks
from edl.tests.gpu.conftest import ROWS
from edl.tests.gpu.test_students import soft_loss
from edl.tests.gpu.test_teachers import Rows


def main(kind: str, teacher: str, folder: Path) -> None:
    """Train on this rank's part of the rows; write their ids and a hash of the weights."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else kind
    if kind == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
    torch.manual_seed(0)
    student = torch.nn.Linear(networks.FEATURES, networks.CLASSES).to(device)
    parallel = DistributedDataParallel(student)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    ids: list[int] = []
    x, rows = map(torch.from_numpy, map(np.concatenate, zip(*Rows(24), strict=True)))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, rows), batch_size=ROWS)
    with DistilReader(
        data, service="bench", teachers=[teacher], feeds=[0], world_size=world_size
    ) as reader:
        for x, own, soft in TorchLoader(reader):
            ids += own.tolist()
            optimizer.zero_grad()
            soft_loss(parallel(x.to(device)), None, soft.to(device)).backward()
            optimizer.step()
    weights = student.weight.detach().cpu().numpy().tobytes()
    told = {"ids": ids, "weights": hashlib.sha256(weights).hexdigest()}
    (folder / f"{rank}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
