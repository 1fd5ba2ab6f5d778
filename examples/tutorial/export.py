"""Export a network of PyTorch with its weights and the names of its inputs."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(7)
net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3)).eval()
rows = {"input": {0: torch.export.Dim("rows")}}
program = torch.export.export(net, (torch.zeros(8, 2),), dynamic_shapes=rows)
torch.export.save(program, "net.pt2")
