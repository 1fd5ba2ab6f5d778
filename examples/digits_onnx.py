"""A stand-in for your model: a classifier of digits, exported to ONNX together with its softmax.

python examples/digits_onnx.py digits.onnx
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits


def main(file: str) -> None:
    torch.manual_seed(7)
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    label = torch.tensor(digits.target)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        loss = torch.nn.functional.cross_entropy(net(pixels), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.onnx.export(
        torch.nn.Sequential(net, torch.nn.Softmax(-1)).eval(),
        (pixels[:8],),
        file,
        input_names=["pixels"],
        output_names=["prob"],
        dynamic_axes={"pixels": {0: "rows"}, "prob": {0: "rows"}},
        dynamo=False,
    )


main(sys.argv[1])
