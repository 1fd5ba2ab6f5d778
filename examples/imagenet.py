r"""A job for `edl student train`: a ResNet50 that learns ImageNet from ResNet101 (the paper).

export IMAGENET=DIR       # contains train/<wnid>/*.JPEG and val/<wnid>/*.JPEG,
                          # or val/*.JPEG with val.txt: lines of file name and class, from 0
python examples/imagenet.py resnet101 [WEIGHTS.pdparams]  # exports the teacher to resnet101/;
                                                          # default: Paddle downloads the weights
edl coordinator serve
edl-teacher serve --model resnet101 --service resnet101 --redis redis://127.0.0.1:6379
edl student train examples/imagenet.py --redis redis://127.0.0.1:6379 --nodes 1:8 \
    --ranks-per-node 8 --total-batch 1024 --epochs 90 --checkpoint s3://bucket/resnet50

Images are sent as uint8; teachers send the 20 largest of 1000 logits. The learning rate is for a
total batch of 1024. IMAGENET_SIZE is the side of a crop in pixels (default 224).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.vision import models, transforms
from paddle.vision.datasets import DatasetFolder

from edl.student import Distill

SIZE = int(os.environ.get("IMAGENET_SIZE", "224"))
WORKERS = int(os.environ.get("IMAGENET_WORKERS", "8"))
CLASSES = 1000
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class ByteInput(nn.Layer):  # type: ignore[misc]  # paddle has no types
    """A network that takes uint8 images [N, 3, SIZE, SIZE] and normalizes them first."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.mean = paddle.to_tensor(MEAN).reshape([3, 1, 1])
        self.std = paddle.to_tensor(STD).reshape([3, 1, 1])

    def forward(self, image: Any) -> Any:
        return self.network((image.astype("float32") / 255.0 - self.mean) / self.std)


class Images(paddle.io.Dataset):  # type: ignore[misc]
    """Pairs of an image, uint8 [3, SIZE, SIZE], and its class, int64."""

    def __init__(self, split: str) -> None:
        super().__init__()
        root = Path(os.environ.get("IMAGENET", "imagenet"))
        val_list = root / "val.txt"
        if split == "train" or not val_list.is_file():
            folder = DatasetFolder(str(root / ("train" if split == "train" else "val")))
            self.samples = list(folder.samples)
        else:
            lines = (line.split() for line in val_list.read_text().splitlines())
            self.samples = [(str(root / "val" / name), int(number)) for name, number in lines]
        if split == "train":
            crop = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
        else:
            crop = [transforms.Resize(SIZE * 256 // 224), transforms.CenterCrop(SIZE)]
        self.transform = transforms.Compose([*crop, transforms.Transpose()])

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        from PIL import Image

        path, number = self.samples[index]
        with Image.open(path) as image:
            return np.asarray(self.transform(image.convert("RGB"))), np.int64(number)

    def __len__(self) -> int:
        return len(self.samples)


def model() -> Any:
    return ByteInput(models.resnet50(num_classes=CLASSES))


def loss(outputs: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    steps = 90 * 1_281_167 // 1024
    cosine = paddle.optimizer.lr.CosineAnnealingDecay(0.4, T_max=steps)
    warm_up = paddle.optimizer.lr.LinearWarmup(cosine, 5 * steps // 90, start_lr=0.0, end_lr=0.4)
    return paddle.optimizer.Momentum(warm_up, 0.9, parameters=parameters, weight_decay=1e-4)


def feed(split: str) -> Any:
    return paddle.io.DataLoader(
        Images(split), batch_size=128, shuffle=split == "train", num_workers=WORKERS
    )


def metrics() -> dict[str, Any]:
    return {
        "top-1": lambda outputs, labels: paddle.metric.accuracy(outputs, labels.unsqueeze(-1), k=1),
        "top-5": lambda outputs, labels: paddle.metric.accuracy(outputs, labels.unsqueeze(-1), k=5),
    }


def distill() -> Distill:
    return Distill(service="resnet101", alpha=0.5, beta=0.5, feeds=[0], label_form="topk:20")


def main(folder: Path, weights: str | None) -> None:
    """Export the teacher, with weights from a file or downloaded by Paddle."""
    network = models.resnet101(pretrained=weights is None, num_classes=CLASSES)
    if weights is not None:
        network.set_state_dict(paddle.load(weights))
    teacher = ByteInput(network)
    teacher.eval()
    spec = paddle.static.InputSpec([None, 3, SIZE, SIZE], "uint8", name="image")
    paddle.jit.save(teacher, str(folder / "model"), input_spec=[spec])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
