"""A service in the configuration of a DistillationModel of PaddleClas."""

from __future__ import annotations

import pytest

from edl.runtime.supervise import Command, start
from edl.tests.interop.environments import PADDLECLAS, ROOT
from edl.tests.interop.running import PROGRAMS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

END_S = 120.0


def test_a_distillation_model_trains_with_a_service() -> None:
    (packages,) = PADDLECLAS.program("python").parent.parent.glob("lib/python3*/site-packages")
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{packages / 'paddleclas'}", "PYTHONWARNINGS": ""}
    script = str(PROGRAMS / "paddleclas_train.py")
    argv = (str(PADDLECLAS.program("python")), "-P", "-m", "edl.integrations.paddleclas", script)
    process = start(Command("paddleclas", argv, env=env, guard=True))
    assert process.wait(END_S) == 0, process.tail()
