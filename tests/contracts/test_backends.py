"""What every backend keeps, over one network of equal weights in each of their formats."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.dataclass_json import from_plain, to_plain
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, TeacherError
from edl.teacher.backends import Backend, ModelSpec, run_in_micro_batches
from edl.teacher.backends.framework import instruction_set
from edl.teacher.backends.selection import KINDS, content_of, open_backend
from edl.teacher.config import PredictorConfig
from edl.teacher.microbatch import warm_up
from edl.teacher.pool import PredictorPool
from edl.teacher.predictor_jobs import RequestLabels
from edl.teacher.request import BatchRequest, RequestedOutput
from edl.tests.teacher import same_network
from edl.tests.teacher.same_network import NAME
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

IMAGE = TensorSpec.parse(same_network.IMAGE)


@dataclass(frozen=True)
class Subject:
    kind: str
    platform: str
    model: Callable[[Path], object]
    settings: dict[str, Any] = field(default_factory=dict)

    def open(self, folder: Path, **more: Any) -> Backend:
        return open_backend(str(self.model(folder)), **self.settings, **more)


INPUTS = {"inputs": [IMAGE]}
PACED = {"backend": "paced", "rate": 4000.0}
SUBJECTS = {
    "paddle-inference": Subject("paddle", "paddle_inference", same_network.write_paddle),
    "paddle-dygraph": Subject("paddle", "paddle_dygraph", lambda _: f"{NAME}:by_paddle"),
    "onnx": Subject("onnx", "onnxruntime", same_network.write_onnx),
    "torch-script": Subject("torch", "torch_script", same_network.write_script, INPUTS),
    "torch-export": Subject("torch", "torch_export", same_network.write_exported),
    "torch-module": Subject("torch", "torch_module", lambda _: f"{NAME}:by_torch"),
    "callable": Subject("callable", "callable", lambda _: f"{NAME}:by_numpy"),
    "function-itself": Subject("callable", "callable", lambda _: f"{NAME}:label", INPUTS),
    "paced": Subject("callable", "emulated_callable", lambda _: f"{NAME}:by_numpy", PACED),
}


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


@pytest.fixture(scope="module")
def folder(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(subject.platform)


@pytest.fixture(scope="module")
def backend(subject: Subject, folder: Path) -> Backend:
    return subject.open(folder)


@pytest.fixture
def images() -> Array:
    return np.random.default_rng(5).standard_normal((20, 1, 8, 8), dtype=np.float32)


def test_every_backend_is_held_to_this_contract() -> None:
    assert {kind.name for kind in KINDS} == {each.kind for each in SUBJECTS.values()}


def test_it_says_what_it_takes_gives_and_is(subject: Subject, backend: Backend) -> None:
    spec = backend.spec
    assert spec.platform == subject.platform
    assert spec.inputs == (IMAGE,)
    assert [tensor.datatype for tensor in spec.outputs] == ["FP32", "FP32"]
    assert [tensor.shape for tensor in spec.outputs] == [(-1, 10), (-1, 144)]
    assert len(spec.content_id) == 64
    assert from_plain(ModelSpec, to_plain(spec)) == spec


def test_content_is_that_of_the_files(subject: Subject, backend: Backend, folder: Path) -> None:
    """So that a model can be known before anything opens it."""
    if any(entry.suffix in (".onnx", ".json", ".pt", ".pt2") for entry in folder.iterdir()):
        assert content_of(str(folder)) == backend.spec.content_id


def test_all_warm_up_and_give_the_same_labels(backend: Backend, images: Array) -> None:
    assert warm_up(backend, 8) > 0
    answer = run_in_micro_batches(backend.run, {"image": images}, 8)
    assert list(answer) == [tensor.name for tensor in backend.spec.outputs]
    expected = same_network.label({"image": images})
    for tensor, array in zip(backend.spec.outputs, expected.values(), strict=True):
        np.testing.assert_allclose(answer[tensor.name], array, atol=1e-4, rtol=0)


def test_opened_again_it_is_the_same(subject: Subject, folder: Path, backend: Backend) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    model = subject.model(folder)
    if isinstance(model, Path):  # a copy of the very files: formats hold ids of each writing
        backend = subject.open(folder)
        for file in folder.glob("net.*"):
            (elsewhere / file.name).write_bytes(file.read_bytes())
        model = elsewhere
    assert open_backend(str(model), **subject.settings).spec == backend.spec


def test_answers_outlive_the_next_run(backend: Backend, images: Array) -> None:
    first = backend.run({"image": images[:8]})
    kept = {name: array.copy() for name, array in first.items()}
    backend.run({"image": images[8:16]})
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])


def test_input_memory_of_any_kind_will_do(backend: Backend, images: Array) -> None:
    """As it comes off the wire (read-only, unaligned) and as numpy slices it (strided)."""
    expected = backend.run({"image": images[:10:2].copy()})
    raw = b"?" + images[:10:2].tobytes()
    unaligned = np.frombuffer(raw, np.uint8)[1:].view(np.float32).reshape(5, 1, 8, 8)
    assert not unaligned.flags.writeable
    assert not unaligned.flags.aligned
    for given in (images[:10:2], unaligned):
        answer = backend.run({"image": given})
        for name, array in expected.items():
            np.testing.assert_allclose(answer[name], array, atol=1e-6)


def test_values_that_do_not_fit_are_an_error_of_ours(backend: Backend) -> None:
    with pytest.raises(TeacherError) as caught:
        backend.run({"image": np.zeros((2, 1, 9, 9), np.float32)})
    assert "\n" not in str(caught.value)
    assert backend.run({"image": np.zeros((2, 1, 8, 8), np.float32)})  # and it goes on


def test_threads_count_for_numerics_and_devices_must_exist(subject: Subject, folder: Path) -> None:
    one, two = subject.open(folder), subject.open(folder, threads=2)
    assert one.spec.numerics_id != two.spec.numerics_id
    for device in ("tpu", "cpu:1", "gpu:x", "gpu:0"):
        with pytest.raises(ModelError, match=r"device|on the CPU"):
            subject.open(folder, device=device)


def test_a_lower_precision_is_labelled_and_near_or_refused(
    subject: Subject, folder: Path, backend: Backend, images: Array
) -> None:
    if subject.platform != "paddle_inference" or "avx512_bf16" not in instruction_set():
        with pytest.raises(ModelError, match="bf16"):
            subject.open(folder, precision="bf16")
        return
    told: list[str] = []
    lower = subject.open(folder, precision="bf16", on_comparison=told.append)
    assert "bf16" in lower.spec.numerics
    assert told
    assert told[0].startswith("bf16 against fp32 on 8 example samples: ")
    exact, rounded = backend.run({"image": images}), lower.run({"image": images})
    for name, array in exact.items():
        np.testing.assert_allclose(rounded[name], array, atol=0.05 * np.abs(array).max())


def test_two_processes_agree_bit_for_bit(subject: Subject, folder: Path, images: Array) -> None:
    settings = {**subject.settings, "inputs": tuple(subject.settings.get("inputs", ()))}
    config = PredictorConfig(str(subject.model(folder)), **settings)
    answers = []
    with ExitStack() as stack:
        pools = [PredictorPool([config]) for _ in range(2)]
        for pool in pools:
            pool.start()
            stack.callback(pool.stop)
        for pool in pools:
            assert pool.wait_loaded(2 * DEADLINE_S)
            spec = pool.require_loaded().spec
            wanted = [RequestedOutput(tensor.name) for tensor in spec.outputs]
            (predictor,) = pool.predictors
            (answer,) = predictor.submit([BatchRequest({"image": images}, wanted)]).result()
            assert isinstance(answer, RequestLabels)
            labels = {name: array.tobytes() for name, array in answer.outputs.items()}
            answer.release()
            answers.append((spec.numerics_id, spec.content_id, labels))
    assert answers[0] == answers[1]
