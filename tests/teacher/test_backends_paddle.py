"""Real Paddle models, exported and eager: what they declare, what they answer, how they fail."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edl.errors import ModelError, RequestRefused, RetryableError
from edl.proto.arena import Array
from edl.supervise import start
from edl.teacher.backends import Backend
from edl.teacher.backends.open import open_backend
from edl.teacher.backends.paddle_runtime import import_paddle, translated
from edl.teacher.microbatch import run_in_micro_batches
from edl.teacher.model import TensorSpec
from edl.teacher.warm_up import warm_up
from edl.tests.ground.programs import python

NETWORKS = "edl.tests.teacher.networks"


@pytest.fixture(scope="module")
def inference(exported: Path) -> Backend:
    return open_backend(str(exported))


@pytest.fixture(scope="module")
def dygraph() -> Backend:
    return open_backend(f"{NETWORKS}:convolution")


@pytest.fixture
def images() -> Array:
    noise = np.random.default_rng(5)
    return noise.standard_normal((20, 1, 8, 8), dtype=np.float32)


def test_an_exported_model_says_what_it_takes_and_gives(inference: Backend) -> None:
    spec = inference.spec
    assert spec.platform == "paddle_inference"
    assert spec.inputs == (TensorSpec("image", "FP32", (-1, 1, 8, 8)),)
    assert [tensor.datatype for tensor in spec.outputs] == ["FP32", "FP32"]
    assert [tensor.shape for tensor in spec.outputs] == [(-1, 10), (-1, 144)]
    assert spec.numerics_id.startswith("paddle-inference-")


def test_a_factory_says_what_it_takes_and_gives(dygraph: Backend) -> None:
    spec = dygraph.spec
    assert spec.platform == "paddle_dygraph"
    assert spec.inputs == (TensorSpec("image", "FP32", (-1, 1, 8, 8)),)
    assert spec.outputs == (
        TensorSpec("output_0", "FP32", (-1, 10)),
        TensorSpec("output_1", "FP32", (-1, 144)),
    )


def test_both_backends_agree_on_the_same_weights(
    inference: Backend, dygraph: Backend, images: Array
) -> None:
    one = run_in_micro_batches(inference.run, {"image": images}, 8)
    other = run_in_micro_batches(dygraph.run, {"image": images}, 8)
    for ours, theirs in zip(one.values(), other.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_two_openings_of_a_model_are_one_model_bit_for_bit(
    exported: Path, inference: Backend, images: Array
) -> None:
    again = open_backend(str(exported.with_suffix(".json")))
    assert again.spec == inference.spec
    one = run_in_micro_batches(inference.run, {"image": images}, 8)
    other = run_in_micro_batches(again.run, {"image": images}, 8)
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes()


def test_a_model_exported_by_paddle_2_labels_as_the_same_weights_of_paddle_3_do(
    inference: Backend, images: Array, tmp_path: Path
) -> None:
    # Its old format is written only by a process that was started for it.
    program = "import sys; from edl.tests.teacher.networks import *; export(Path(sys.argv[1]))"
    process = start(python(program, tmp_path, env={"FLAGS_enable_pir_api": "0"}))
    assert process.wait(60) == 0, process.tail()
    assert (tmp_path / "net.pdmodel").is_file()

    old = open_backend(str(tmp_path))

    assert old.spec.inputs == inference.spec.inputs
    assert [t.shape for t in old.spec.outputs] == [t.shape for t in inference.spec.outputs]
    assert old.spec.content_id != inference.spec.content_id
    one = run_in_micro_batches(inference.run, {"image": images}, 8)
    other = run_in_micro_batches(old.run, {"image": images}, 8)
    for ours, theirs in zip(one.values(), other.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_answers_outlive_the_next_run(inference: Backend, images: Array) -> None:
    first = inference.run({"image": images[:8]})
    kept = {name: array.copy() for name, array in first.items()}
    inference.run({"image": images[8:16]})
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])


def test_input_memory_of_any_kind_will_do(inference: Backend, images: Array) -> None:
    """As it comes off the wire (read-only, unaligned) and as numpy slices it (strided)."""
    expected = inference.run({"image": images[:10:2]})
    raw = b"?" + images[:10:2].tobytes()
    unaligned = np.frombuffer(raw, np.uint8)[1:].view(np.float32).reshape(5, 1, 8, 8)
    assert not unaligned.flags.writeable
    assert not unaligned.flags.aligned
    for given in (images[:10:2], unaligned):
        answer = inference.run({"image": given})
        for name, array in expected.items():
            np.testing.assert_array_equal(answer[name], array)


def test_names_and_datatypes_other_than_floats() -> None:
    backend = open_backend(f"{NETWORKS}:integers")
    assert backend.spec.inputs == (TensorSpec("ids", "INT64", (-1, 2)),)
    assert [t.datatype for t in backend.spec.outputs] == ["INT64", "BOOL"]
    answer = backend.run({"ids": np.array([[0, 4]], dtype=np.int64)})
    assert [array.tolist() for array in answer.values()] == [[[1, 5]], [[False, True]]]


def test_a_dict_of_outputs_keeps_its_names_and_values_that_do_not_fit_are_refused() -> None:
    backend = open_backend(f"{NETWORKS}:steered")
    assert [tensor.name for tensor in backend.spec.outputs] == ["logits", "twice"]
    refused, failed = np.zeros((2, 4), "f4"), np.zeros((2, 4), "f4")
    refused[0, 0], failed[0, 0] = 1004, 1005
    with pytest.raises(RequestRefused, match="no such word"):
        backend.run({"x": refused})
    with pytest.raises(RetryableError, match="out of device memory"):
        backend.run({"x": failed})


def test_inputs_may_be_declared_by_the_user(exported: Path) -> None:
    narrow = TensorSpec("image", "FP32", (4, 1, 8, 8))
    assert open_backend(str(exported), inputs=[narrow]).spec.inputs == (narrow,)
    x = TensorSpec("x", "FP32", (-1, 4))
    assert open_backend(f"{NETWORKS}:bare", inputs=[x]).spec.inputs == (x,)


@pytest.mark.parametrize(
    "declared", ["img:FP32:-1,1,8,8", "image:FP64:-1,1,8,8", "image:FP32:-1,3,8,8"]
)
def test_inputs_that_are_not_the_models_are_refused(exported: Path, declared: str) -> None:
    with pytest.raises(ModelError, match=r"the model has image:FP32:-1,1,8,8"):
        open_backend(str(exported), inputs=[TensorSpec.parse(declared)])


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("edl.no_such_module:make", "no factory .*No module named"),
        (f"{NETWORKS}:nope", "no factory .*has no attribute 'nope'"),
        (f"{NETWORKS}:raises", "raised KeyError: 'weights.pdparams'"),
        (f"{NETWORKS}:not_a_layer", "returned int: expected a paddle.nn.Layer or a torch"),
        (f"{NETWORKS}:bare", r"inputs of .* are not known: return \(layer, \[InputSpec"),
        (f"{NETWORKS}:nothing", "gives no outputs"),
        (f"{NETWORKS}:fails_on_example", "does not run"),
    ],
)
def test_a_factory_that_gives_no_teacher_is_refused(factory: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_backend(factory)


def test_a_network_that_cannot_label_fails_its_warm_up() -> None:
    with pytest.raises(ModelError, match="must be the batch"):
        warm_up(open_backend(f"{NETWORKS}:mean_of_batch"), 8)


def test_a_real_model_warms_up(inference: Backend) -> None:
    assert 0 < warm_up(inference, 8) < 1


@pytest.mark.parametrize("suffix", [".json", ".pdiparams"])
@pytest.mark.parametrize("damage", [b"garbage", b'{"a": 1}', b""])
def test_damaged_files_are_one_line(
    exported: Path, tmp_path: Path, suffix: str, damage: bytes
) -> None:
    for part in (".json", ".pdiparams"):
        whole = exported.with_suffix(part).read_bytes()
        (tmp_path / f"net{part}").write_bytes(damage if part == suffix else whole)
    with pytest.raises(ModelError, match=r"paddle .* cannot load .*net.json: ") as caught:
        open_backend(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["gpu:0", "tpu", "cpu:1", "gpu:x"])
def test_a_device_that_is_not_there_is_refused(exported: Path, device: str) -> None:
    with pytest.raises(ModelError, match="device"):
        open_backend(str(exported), device=device)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (MemoryError("x"), RetryableError),
        (OSError("x"), RetryableError),
        (RuntimeError("x"), RetryableError),
        (NotImplementedError("x"), RequestRefused),
        (ValueError("x"), RequestRefused),
        (IndexError("x"), RequestRefused),
        (AttributeError("x"), RequestRefused),
    ],
)
def test_errors_of_a_run_are_translated(raised: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected, match="the model failed: x"), translated("the model"):
        raise raised


def test_a_program_of_paddle_3_is_refused_by_paddle_2_with_what_to_install(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_paddle(), "__version__", "2.6.2")
    with pytest.raises(ModelError, match=r"paddle 2.6.2 reads .*pip install 'paddlepaddle>=3.0'"):
        open_backend(str(exported))


def test_bf16_is_told_apart_and_measured_against_fp32(
    exported: Path, inference: Backend, images: Array
) -> None:
    told: list[str] = []
    if not import_paddle().base.core.supports_bfloat16_fast_performance():
        with pytest.raises(ModelError, match="no bf16 instructions"):
            open_backend(str(exported), precision="bf16")
        return
    lower = open_backend(str(exported), precision="bf16", tell=told.append)
    assert lower.spec.numerics_id != inference.spec.numerics_id
    assert "-bf16-" in lower.spec.numerics_id
    assert lower.spec.content_id == inference.spec.content_id
    exact, rounded = inference.run({"image": images}), lower.run({"image": images})
    for name, array in exact.items():
        apart = np.abs(rounded[name] - array).max()
        assert 0 < apart < 0.05 * np.abs(array).max()
    (line,) = told
    assert re.match(
        r"bf16 against fp32 on 8 example samples: fetch_name_0 differs by at most 0\.\d+ "
        r"\(\d\.\d+% of its largest value\), largest entry the same in \d of 8; fetch_name_1",
        line,
    )


def test_a_program_that_paddle_cannot_read_may_be_of_a_newer_one(
    exported: Path, tmp_path: Path
) -> None:
    for file in exported.parent.glob(f"{exported.stem}.*"):
        (tmp_path / f"net{file.suffix}").write_bytes(file.read_bytes())
    program = tmp_path / "net.json"
    program.write_text(program.read_text().replace("1.matmul", "1.conv9d"))
    with pytest.raises(ModelError, match=r"cannot load .*pip install --upgrade paddle") as caught:
        open_backend(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_bf16_is_for_exported_models_on_cpus() -> None:
    with pytest.raises(ModelError, match=r"bf16 is for exported models: .*paddle.jit.save"):
        open_backend(f"{NETWORKS}:convolution", precision="bf16")
