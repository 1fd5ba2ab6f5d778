"""Networks of timm that take uint8 images, as factories for `edl teacher serve --model`.

Their weights are random, from a fixed seed: the speed does not depend on them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import UsageError

#: Height and width of an image.
SIZE: Final = 224
CLASSES: Final = 1000
#: Mean and standard deviation of ImageNet's pixels, for each colour.
_MEAN: Final = (123.675, 116.28, 103.53)
_DEVIATION: Final = (58.395, 57.12, 57.375)


def picture(rows: int) -> Array:
    """Return a batch for these networks: random bytes, uint8 [rows, 3, 224, 224]."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (rows, 3, SIZE, SIZE), np.uint8)


def resnet50() -> Any:
    """Return ResNet50 in float32."""
    return _on_bytes("resnet50")


def resnet50_bf16() -> Any:
    """Return ResNet50 in mixed precision: products in bfloat16."""
    return _on_bytes("resnet50", mixed=True)


def vit_b() -> Any:
    """Return ViT-B/16 in float32."""
    return _on_bytes("vit_base_patch16_224")


def vit_b_bf16() -> Any:
    """Return ViT-B/16 in mixed precision: products in bfloat16."""
    return _on_bytes("vit_base_patch16_224", mixed=True)


def _on_bytes(name: str, *, mixed: bool = False) -> Any:
    """Return a network and its example inputs. The network first normalizes uint8 images.

    Raises:
        UsageError: timm is not installed.
    """
    import torch

    try:
        import timm
    except ImportError as error:
        raise UsageError(f"the network {name} needs timm: pip install timm") from error
    torch.manual_seed(0)

    class NetworkOnBytes(torch.nn.Module):  # type: ignore[misc]  # torch is imported late
        def __init__(self) -> None:
            super().__init__()
            self.network = timm.create_model(name, pretrained=False, num_classes=CLASSES)
            self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1))
            self.register_buffer("deviation", torch.tensor(_DEVIATION).view(1, 3, 1, 1))

        def forward(self, image: Any) -> Any:
            pixels = (image.float() - self.mean) / self.deviation
            with torch.autocast(image.device.type, torch.bfloat16, enabled=mixed):
                logits = self.network(pixels)
            return {"logits": logits.float()}

    return NetworkOnBytes(), [torch.zeros((1, 3, SIZE, SIZE), dtype=torch.uint8)]
