"""NVIDIA's stock clients, unchanged, against a real teacher: gRPC, HTTP and shared memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from edl.runtime.supervise import Command, python_command, start
from edl.teacher import open_backend, run_in_micro_batches
from edl.tests.teacher.networks import export

PROGRAM = Path(__file__).with_name("triton_client.py")
START_S = 60.0


def test_every_lane_gives_the_labels_of_the_model_in_process_bit_for_bit(tmp_path: Path) -> None:
    """So are descriptions, statistics and errors those of the protocol: the program has them."""
    model = str(export(tmp_path))
    image = np.random.default_rng(3).standard_normal((13, 1, 8, 8), dtype=np.float32)
    labels = run_in_micro_batches(open_backend(model).run, {"image": image}, 8)
    assert len(labels) == 2
    arrays: dict[str, Any] = {"image": image, **labels}
    np.savez(tmp_path / "known.npz", **arrays)
    flags = ("--model", model, "--service", "net", "--http", "0", "--allow-system-shm")
    teacher = start(python_command("teacher", "edl.teacher", "serve", *flags))
    try:
        http = teacher.expect(r"HTTP on http://(\S+)/v2$", START_S)[1]
        address = teacher.expect(r"^teacher ready: \S+ net on (\S+)$", START_S)[1]
        known = str(tmp_path / "known.npz")
        argv = (sys.executable, "-P", str(PROGRAM), address, http, "net", known)
        client = start(Command("tritonclient", argv))
        assert client.wait(START_S) == 0, client.tail()
    finally:
        teacher.stop()
