"""The device of these tests: a GPU in `make gpu`, the CPU elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from edl.runtime.supervise import Process
from edl.tests.conftest import TIER

ROWS = 32
Start = Callable[..., list[tuple[str, Process]]]


@dataclass(frozen=True)
class TestDevice:
    """A device, as PyTorch and as `--devices` call it."""

    __test__ = False

    torch: str
    teacher: str

    @property
    def on_gpu(self) -> bool:
        return self.torch == "cuda"


def needs_gpu(device: TestDevice) -> None:
    """Skip a test of the time that only a GPU takes beside its caller's."""
    if not device.on_gpu:
        pytest.skip("a CPU takes no time beside that of its caller")


@pytest.fixture(scope="session")
def device() -> TestDevice:
    if TIER != "gpu":
        return TestDevice("cpu", "cpu")
    import torch

    if not torch.cuda.is_available():
        pytest.fail("make gpu needs a GPU that PyTorch can use: see tests/gpu/README.md")
    return TestDevice("cuda", "gpu:0")


@pytest.fixture
def teachers(device: TestDevice) -> Iterator[Start]:
    """Starts teachers of a network on the device: their addresses and processes."""
    from edl.benchmarks.paced.teachers import start_teachers

    with ExitStack() as ending:

        def start(network: str = "linear", *more: str, count: int = 1) -> list[tuple[str, Process]]:
            options = ("--devices", device.teacher, "--micro-batch", str(ROWS), *more)
            return start_teachers(ending, [options] * count, f"edl.tests.gpu.networks:{network}")

        yield start
