"""PaddleClas: a service of teachers as a model in the configuration of a `DistillationModel`.

    python -m edl.integrations.paddleclas tools/train.py -c distillation.yaml

```yaml
Arch:
  name: DistillationModel
  models:
    - Teacher: {name: ServiceTeacher, service: resnet101, coordinator: redis://head:6379}
    - Student: {name: PPLCNet_x1_0}
```
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import paddle

from .on_demand import ImageLabeller, run_script

_IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
_IMAGENET_STD: Final = (0.229, 0.224, 0.225)


class ServiceTeacher(paddle.nn.Layer):  # type: ignore[misc]
    """A layer whose `forward` asks the teachers of a service; it has no parameters.

    It converts the normalized images of the training back to colours from 0 to 255 and sends these
    as UINT8, so the teachers have to normalize them. A training step waits for its labels.

    Args:
        mean: mean of each channel, as in the normalization of the configuration's transforms.
        std: standard deviation of each channel, as in the same normalization.
        output: name of the teachers' output with the logits; "" if they have one output.
        **options: arguments of `TeacherPool`: service, coordinator or teachers, and so on.
    """

    def __init__(
        self,
        mean: Sequence[float] = _IMAGENET_MEAN,
        std: Sequence[float] = _IMAGENET_STD,
        output: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        self._mean, self._std = (
            paddle.to_tensor(each, "float32").reshape([1, -1, 1, 1]) for each in (mean, std)
        )
        self._labeller = ImageLabeller(output, **options)

    def forward(self, images: Any, label: Any = None) -> Any:
        """Return the teachers' labels, float [N, classes], on the device of the images."""
        colours = (images.detach().astype("float32") * self._std + self._mean) * 255
        colours = colours.round().clip(0, 255).astype("uint8").cpu()
        return self._labeller.label(colours).to(images.place)


def register() -> None:
    """Let configurations of PaddleClas name `ServiceTeacher`."""
    import ppcls.arch

    ppcls.arch.ServiceTeacher = ServiceTeacher


def main(argv: Sequence[str]) -> None:
    """Run a script of PaddleClas whose configuration may name `ServiceTeacher`."""
    if not argv or argv[0].startswith("-"):
        sys.exit("usage: python -m edl.integrations.paddleclas tools/train.py -c FILE ...")
    script = os.path.abspath(argv[0])
    sys.path.insert(0, os.path.dirname(os.path.dirname(script)))  # contains `ppcls`
    register()
    run_script(script, argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
