"""timm: a service of teachers as the model of `--kd-model-name`, with timm's unchanged train.py.

    export EDL_COORDINATOR=redis://head:6379
    python -m edl.integrations.timm train.py --kd-service resnet101 --model resnet18 ...

`ServiceTeacher` is that model. It labels each batch on demand, after all augmentations of the
training script; a training step waits for its labels.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from timm.models import register_model

from .on_demand import ImageLabeller, run_script

#: Environment variables with the arguments of the model: timm passes none when it creates a model.
SERVICE: Final = "EDL_SERVICE"
COORDINATOR: Final = "EDL_COORDINATOR"
TEACHERS: Final = "EDL_TEACHERS"


class ServiceTeacher(torch.nn.Module):  # type: ignore[misc]
    """A module whose `forward` asks the teachers of a service.

    timm normalizes the images for a teacher according to its `pretrained_cfg`. With the
    `pretrained_cfg` below, images have colours from 0 to 255. They are sent as UINT8, so the
    teachers have to normalize them, as `edl teacher serve --model timm/NAME` does.

    Args:
        output: name of the teachers' output with the logits; "" if they have one output.
        **options: arguments of `TeacherPool`: service, coordinator or teachers, and so on.
    """

    #: timm computes (image - mean) / std of images from 0 to 1, which gives colours from 0 to 255.
    pretrained_cfg: Final[Mapping[str, Any]] = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}

    def __init__(self, output: str = "", **options: Any) -> None:
        super().__init__()
        self._labeller = ImageLabeller(output, **options)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, images: Any) -> Any:
        """Return the teachers' labels, float [N, classes], on the device of the images."""
        colours = images.detach().float().round().clamp(0, 255).to(torch.uint8).cpu()
        return self._labeller.label(colours).to(images.device)


@register_model  # type: ignore[untyped-decorator]
def edl_teacher(pretrained: bool = False, **_: Any) -> ServiceTeacher:
    """Create the model; its arguments come from environment variables."""
    addresses = os.environ.get(TEACHERS, "")
    return ServiceTeacher(
        service=os.environ[SERVICE],
        coordinator=None if addresses else os.environ.get(COORDINATOR),
        teachers=addresses.split(",") if addresses else (),
    )


def main(argv: Sequence[str]) -> None:
    """Run a training script with the teachers of a service in place of a model."""
    parser = argparse.ArgumentParser(
        "python -m edl.integrations.timm",
        usage="%(prog)s SCRIPT [options of the script] --kd-service NAME",
        description="Runs a training script of timm with a service of teachers.",
        allow_abbrev=False,
    )
    parser.add_argument("script", help="such as timm's train.py")
    parser.add_argument(
        "--kd-service", required=True, metavar="NAME", help="service of the teachers"
    )
    mesh = parser.add_mutually_exclusive_group()
    mesh.add_argument(
        "--kd-coordinator", metavar="URL", help=f"Redis URL of the mesh; default: ${COORDINATOR}"
    )
    mesh.add_argument(
        "--kd-teachers", metavar="HOST:PORT,...", help="addresses, in place of a coordinator"
    )
    options, rest = parser.parse_known_args(argv)
    if options.kd_coordinator:
        os.environ.pop(TEACHERS, None)
    variables = {
        SERVICE: options.kd_service,
        COORDINATOR: options.kd_coordinator,
        TEACHERS: options.kd_teachers,
    }
    os.environ.update({name: value for name, value in variables.items() if value})
    run_script(options.script, [*rest, "--kd-model-name", edl_teacher.__name__])


if __name__ == "__main__":  # register the model in the module, not in `__main__`
    from edl.integrations import timm

    timm.main(sys.argv[1:])
