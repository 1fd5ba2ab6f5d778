"""Real Paddle models, exported and eager: what they declare, what they answer, how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, RequestRefused, RetryableError
from edl.runtime.supervise import start
from edl.teacher.backends import run_in_micro_batches
from edl.teacher.backends.paddle import import_paddle, translate_errors
from edl.teacher.backends.selection import open_backend
from edl.tests.runtime.programs import python
from edl.tests.teacher import same_network
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

NETWORKS = "edl.tests.teacher.networks"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_network.write_paddle(tmp_path_factory.mktemp("model"))


def test_a_model_of_paddle_2_gives_the_labels_of_paddle_3(exported: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(5).standard_normal((20, 1, 8, 8), dtype=np.float32)
    # Its old format is written only by a process that was started for it.
    program = f"import sys; from {NETWORKS} import *; export(Path(sys.argv[1]))"
    process = start(python(program, tmp_path, env={"FLAGS_enable_pir_api": "0"}))
    assert process.wait(DEADLINE_S) == 0, process.tail()
    assert (tmp_path / "net.pdmodel").is_file()

    inference, old = open_backend(str(exported)), open_backend(str(tmp_path))

    narrow = TensorSpec("image", "FP32", (4, 1, 8, 8))
    assert open_backend(str(exported), inputs=[narrow]).spec.inputs == (narrow,)
    assert old.spec.inputs == inference.spec.inputs
    assert [t.shape for t in old.spec.outputs] == [t.shape for t in inference.spec.outputs]
    assert old.spec.content_id != inference.spec.content_id
    one = run_in_micro_batches(inference.run, {"image": images}, 8)
    other = run_in_micro_batches(old.run, {"image": images}, 8)
    for ours, theirs in zip(one.values(), other.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_names_and_integer_datatypes() -> None:
    x = TensorSpec("x", "FP32", (-1, 4))
    spec = open_backend(f"{NETWORKS}:bare", inputs=[x]).spec
    assert spec.inputs == (x,)
    assert [tensor.name for tensor in spec.outputs] == ["logits", "twice"]
    backend = open_backend(f"{NETWORKS}:integers")
    assert backend.spec.inputs == (TensorSpec("ids", "INT64", (-1, 2)),)
    assert [t.datatype for t in backend.spec.outputs] == ["INT64", "BOOL"]
    answer = backend.run({"ids": np.array([[0, 4]], dtype=np.int64)})
    assert [array.tolist() for array in answer.values()] == [[[1, 5]], [[False, True]]]


def test_bfloat16_is_neither_sent_nor_taken_as_integers() -> None:
    backend = open_backend(f"{NETWORKS}:bfloat16")
    assert [t.datatype for t in (*backend.spec.inputs, *backend.spec.outputs)] == ["BF16", "BF16"]
    x = np.array([[0.5, -3, 1024, 7]], dtype=ml_dtypes.bfloat16)
    (twice,) = backend.run({"x": x}).values()
    np.testing.assert_array_equal(twice.astype(np.float32), 2 * x.astype(np.float32))
    with pytest.raises(ModelError, match="x:UINT16:-1,4: Paddle takes UINT16 for bfloat16"):
        open_backend(f"{NETWORKS}:bfloat16", inputs=[TensorSpec("x", "UINT16", (-1, 4))])


def test_a_paddle_without_the_former_names_of_onednn_opens_models(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("enable_mkldnn", "enable_mkldnn_bfloat16"):
        monkeypatch.delattr(import_paddle().inference.Config, name)
    assert open_backend(str(exported)).spec.platform == "paddle_inference"


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("edl.tests.teacher.test_preprocess:no_function", "returned int: expected a paddle.nn.Lay"),
        (f"{NETWORKS}:bare", r"inputs of .* are not known: return \(layer, \[InputSpec"),
        (f"{NETWORKS}:nothing", "gives no outputs"),
        (f"{NETWORKS}:fails_on_example", "does not run"),
    ],
)
def test_a_factory_without_a_usable_model_is_refused(factory: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_backend(factory)


@pytest.mark.parametrize("suffix", [".json", ".pdiparams"])
@pytest.mark.parametrize("damage", [b"garbage", b'{"a": 1}', b""])
def test_damaged_files_are_refused(tmp_path: Path, suffix: str, damage: bytes) -> None:
    same_network.write_paddle(tmp_path).with_suffix(suffix).write_bytes(damage)
    with pytest.raises(ModelError, match=r"paddle .* cannot load .*net.json: ") as caught:
        open_backend(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([MemoryError, OSError, RuntimeError], RetryableError),
        ([NotImplementedError, ValueError, IndexError, AttributeError], RequestRefused),
    ],
)
def test_errors_are_translated(errors: list[type[Exception]], expected: type[Exception]) -> None:
    for error in errors:
        with pytest.raises(expected, match="the model failed: x"), translate_errors("the model"):
            raise error("x")


def test_a_program_without_outputs_is_refused(tmp_path: Path) -> None:
    program = same_network.write_paddle(tmp_path)
    content = json.loads(program.read_text())
    block = content["program"]["regions"][0]["blocks"][0]
    block["ops"] = [operation for operation in block["ops"] if operation["#"] != "1.fetch"]
    program.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="has 1 inputs and 0 outputs"):
        open_backend(str(program))


def test_a_program_of_a_newer_paddle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = same_network.write_paddle(tmp_path)
    program.write_text(program.read_text().replace("1.matmul", "1.conv9d"))
    with pytest.raises(ModelError, match=r"cannot load .*pip install --upgrade paddle") as caught:
        open_backend(str(tmp_path))
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(import_paddle(), "__version__", "2.6.2")
    with pytest.raises(ModelError, match=r"paddle 2.6.2 reads .*pip install 'paddlepaddle>=3.0'"):
        open_backend(str(tmp_path))
