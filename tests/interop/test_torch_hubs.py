"""timm and torchvision: their models by name, and teachers of a service in timm's training."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.runtime.supervise import Command, Process, start
from edl.tests.interop.environments import ROOT, TORCH_HUBS
from edl.tests.interop.running import PROGRAMS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

START_S = 120.0
SAVE = """
import sys, timm
network = timm.create_model("resnet10t", num_classes=10)
timm.models.save_for_hf(network, sys.argv[1], {"num_classes": 10}, safe_serialization=True)
"""


def program(folder: Path, *argv: str, **env: str) -> Process:
    """Start Python in the environment of timm, with its caches in `folder`."""
    env |= {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONWARNINGS": "",
        "HF_HUB_CACHE": str(folder / "hub"),
        "TORCH_HOME": str(folder / "torch"),
    }
    command = (str(TORCH_HUBS.program("python")), "-P", *argv)
    return start(Command("torch-hubs", command, env=env, guard=True))


def run(folder: Path, *argv: str, **env: str) -> None:
    """Run a program to its end."""
    process = program(folder, *argv, **env)
    assert process.wait(START_S) == 0, process.tail()


def test_named_models_label_as_their_libraries_do(tmp_path: Path) -> None:
    run(tmp_path, str(PROGRAMS / "torch_hubs.py"), str(tmp_path))


def test_a_script_of_timm_trains_with_a_service_in_place_of_a_teacher(tmp_path: Path) -> None:
    data = tmp_path / "resnet10t"
    run(tmp_path, "-c", SAVE, str(data))
    model = ("--model", f"timm/{data}", "--input", "image:UINT8:-1,3,64,64")
    teacher = program(tmp_path, "-m", "edl.teacher", "serve", *model, "--service", "teachers")
    try:
        address = teacher.expect(r"^teacher ready: \S+ teachers on (\S+)$", START_S)[1]
        script = (str(PROGRAMS / "timm_train.py"), "--data", str(data))
        service = ("--kd-service", "teachers", "--kd-teachers", address)
        run(tmp_path, "-m", "edl.integrations.timm", *script, *service)
    finally:
        teacher.stop()
