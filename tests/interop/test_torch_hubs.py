"""Models of timm and torchvision by their names give the labels of these libraries' pipelines."""

from __future__ import annotations

from pathlib import Path

from edl.runtime.supervise import Command, start
from edl.tests.interop.environments import ROOT, TORCH_HUBS
from edl.tests.interop.running import PROGRAMS

END_S = 120.0


def test_named_models_label_as_their_libraries_do(tmp_path: Path) -> None:
    argv = (str(TORCH_HUBS.program("python")), "-P", str(PROGRAMS / "torch_hubs.py"), str(tmp_path))
    env = {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONWARNINGS": "",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "TORCH_HOME": str(tmp_path / "torch"),
    }
    program = start(Command("torch-hubs", argv, env=env, guard=True))
    assert program.wait(END_S) == 0, program.tail()
