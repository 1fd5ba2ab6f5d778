"""Compares teachers of `timm/...` and `torchvision/...` with these libraries' own pipelines.

    python torch_hubs.py FOLDER

Weights are random, and written to FOLDER as the libraries and their caches keep them. Exits with 0
if all labels agree.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torchvision import transforms
from torchvision.models import get_model, get_model_weights

from edl.runtime.errors import ModelError
from edl.teacher import open_backend

TIMM, TORCHVISION = "resnet18.a1_in1k", "mobilenet_v3_small"


def photograph() -> Image.Image:
    """A picture of noise that is neither square nor of a model's size."""
    colours = np.random.default_rng(5).integers(0, 256, (260, 340, 3), dtype=np.uint8)
    return Image.fromarray(colours)


def compared(model: str, network: Any, transform: Any) -> None:
    """Label a photograph with a teacher, and with the library's own transform and network."""
    steps = transform.transforms
    sized = transforms.Compose(steps[:2])(photograph())  # resized and cropped, as by a sender
    image = np.asarray(sized).transpose(2, 0, 1)[None]
    labels = open_backend(model).run({"image": np.ascontiguousarray(image)})["output_0"]
    with torch.inference_mode():
        expected = network.eval()(transform(photograph())[None]).numpy()
    np.testing.assert_array_equal(labels, expected, err_msg=model)


def refused(model: str, words: str) -> None:
    """Check that a model is refused with these words in the error."""
    try:
        open_backend(model)
        said = "it was opened"
    except ModelError as error:
        said = str(error)
    assert words in said, said


def of_timm(folder: Path) -> None:
    """A folder, a name in the cache, and a model of which no weights are there."""
    network = timm.create_model(TIMM)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
    cached = folder / "hub" / f"models--timm--{TIMM}"
    snapshot = cached / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a" * 40)
    timm.models.save_for_hf(network, snapshot, safe_serialization=True)
    for name in (TIMM, TIMM.partition(".")[0], f"timm/{TIMM}", str(snapshot)):
        compared(f"timm/{name}", network, transform)
    refused("timm/resnet34", "not in the local cache")
    refused("timm/resnt18", "did you mean resnet18")
    refused("timm/resnet18.nobodys", "no weights timm/resnet18.nobodys")


def of_torchvision(folder: Path) -> None:
    """Weights in torch's cache, and weights that are not there."""
    network, weights = get_model(TORCHVISION), get_model_weights(TORCHVISION).DEFAULT
    checkpoints = folder / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    torch.save(network.state_dict(), checkpoints / weights.url.rpartition("/")[2])
    own = weights.transforms()
    transform = transforms.Compose(
        [
            transforms.Resize(own.resize_size, own.interpolation, antialias=own.antialias),
            transforms.CenterCrop(own.crop_size),
            transforms.ToTensor(),
            transforms.Normalize(own.mean, own.std),
        ]
    )
    for name in (TORCHVISION, f"{TORCHVISION}.{weights.name}"):
        compared(f"torchvision/{name}", network, transform)
    refused("torchvision/resnet18", "not in the local cache")
    refused("torchvision/nothing", "torchvision has no weights nothing")
    refused("torchvision/fasterrcnn_resnet50_fpn", "does not take images as one array")


def main(folder: Path) -> None:
    """Run all comparisons."""
    torch.manual_seed(0)
    of_timm(folder)
    of_torchvision(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
