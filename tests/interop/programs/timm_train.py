"""Trains a little with timm's own distillation task, as its train.py does.

    python timm_train.py --data FOLDER --kd-model-name NAME

Checks that the labels of the teacher are those of the network in FOLDER.
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.task import LogitDistillationTask

BATCHES, ROWS, CLASSES, SIDE = 5, 4, 10, 64


def main() -> None:
    """Train for some batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--kd-model-name", required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    known = timm.create_model(f"local-dir:{args.data}", pretrained=True).eval()
    student = timm.create_model("resnet10t", num_classes=CLASSES)
    cpu = torch.device("cpu")
    task = LogitDistillationTask(student, args.kd_model_name, device=cpu).train()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    mean, std = task.student_mean, task.student_std
    for _ in range(BATCHES):
        colours = torch.randint(0, 256, (ROWS, 3, SIDE, SIDE))
        images = (colours / 255 - mean) / std
        with torch.inference_mode():
            expected = known(images)
        scaled = task.teacher.normalize_input(images, mean, std)
        torch.testing.assert_close(task.teacher(scaled), expected, rtol=1e-4, atol=1e-5)
        task(images, torch.randint(0, CLASSES, (ROWS,)))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"trained {BATCHES} batches")


if __name__ == "__main__":
    main()
