"""Models by name: folders and a cache of Hugging Face, opened with the real transformers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError
from edl.runtime.supervise import python_command, start
from edl.teacher.backends.selection import check_model, open_backend
from edl.teacher.cli import model_name

pytestmark = pytest.mark.system

#: What transformers writes beside a ViT, with numbers that no other model has.
PROCESSOR = {
    **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), True),
    "size": {"height": 40, "width": 40},
    "crop_size": {"height": 32, "width": 32},
    "rescale_factor": 1 / 255,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
}
TOKENS = {
    "input_ids": np.array([[5, 17, 2, 0], [8, 9, 10, 11]]),
    "attention_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
}
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


def saved(network: Any, folder: Path) -> Path:
    network.eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vit(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=7)
    network = transformers.ViTForImageClassification(config)
    folder = saved(network, tmp_path_factory.mktemp("vit"))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return network, folder


@pytest.fixture(scope="module")
def bert(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    config = transformers.BertConfig(**SMALL, vocab_size=50, num_labels=3)
    network = transformers.BertForSequenceClassification(config)
    return network, saved(network, tmp_path_factory.mktemp("bert"))


def logits(network: Any, **inputs: Any) -> Any:
    import torch

    with torch.inference_mode():
        return network(**{name: torch.from_numpy(value) for name, value in inputs.items()})[0]


def specs(*texts: str) -> tuple[TensorSpec, ...]:
    return tuple(map(TensorSpec.parse, texts))


def test_images_are_scaled_as_the_model_says(vit: tuple[Any, Path]) -> None:
    network, folder = vit
    opened = open_backend(f"hf/{folder}")
    assert opened.spec.inputs == specs("pixel_values:UINT8:-1,3,32,32")
    assert opened.spec.outputs == specs("logits:FP32:-1,7")
    assert opened.spec.preprocessing == (
        "resize images to 40 x 40, then take a center crop of 32 x 32",
        "UINT8 / 255, minus (0.1, 0.2, 0.3), divided by (0.4, 0.5, 0.6)",
    )
    colours = np.random.default_rng(1).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    mean, std = (
        np.array(PROCESSOR[name], np.float32).reshape(3, 1, 1)
        for name in ("image_mean", "image_std")
    )
    scaled = (colours.astype(np.float32) / np.float32(255) - mean) / std
    expected = logits(network, pixel_values=scaled)
    np.testing.assert_allclose(
        opened.run({"pixel_values": colours})["logits"], expected, rtol=1e-4, atol=1e-5
    )

    floats = open_backend(f"hf/{folder}", inputs=specs("pixel_values:FP32:-1,3,32,32"))
    assert floats.spec.preprocessing == ()
    assert floats.spec.content_id != opened.spec.content_id, "their labels differ"
    np.testing.assert_array_equal(floats.run({"pixel_values": scaled})["logits"], expected)


@pytest.mark.parametrize(
    ("processor", "resizing"),
    [
        ({"size": 32, "do_center_crop": False}, "resize images to 32 x 32"),
        (
            {"size": {"shortest_edge": 40}},
            "resize the shorter side of images to 40, then take a center crop of 32 x 32",
        ),
    ],
)
def test_the_user_is_told_how_to_resize_images(
    vit: tuple[Any, Path], tmp_path: Path, processor: dict[str, Any], resizing: str
) -> None:
    folder = shutil.copytree(vit[1], tmp_path / "model")
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | processor))
    assert open_backend(f"hf/{folder}").spec.preprocessing[0] == resizing


def test_steps_before_a_named_model(vit: tuple[Any, Path]) -> None:
    plain = open_backend(f"hf/{vit[1]}")
    last = open_backend(f"hf/{vit[1]}", preprocess=["nhwc"])
    assert last.spec.inputs == specs("pixel_values:UINT8:-1,32,32,3")
    assert last.spec.preprocessing == ("nhwc", *plain.spec.preprocessing)
    colours = np.random.default_rng(2).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    turned = np.ascontiguousarray(colours.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(
        last.run({"pixel_values": turned})["logits"], plain.run({"pixel_values": colours})["logits"]
    )
    unit = open_backend(
        f"hf/{vit[1]}", preprocess=["unit"], inputs=specs("pixel_values:UINT8:-1,3,32,32")
    )
    assert unit.spec.preprocessing == ("unit",), "the step has made floats of the colours"


def test_text_models_take_tokens(bert: tuple[Any, Path]) -> None:
    network, folder = bert
    opened = open_backend(f"hf/{folder}")
    assert opened.spec.inputs == specs("input_ids:INT64:-1,-1", "attention_mask:INT64:-1,-1")
    np.testing.assert_array_equal(opened.run(TOKENS)["logits"], logits(network, **TOKENS))
    declared = specs(*(f"{name}:INT64:-1,4" for name in (*TOKENS, "token_type_ids")))
    kinds = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    inputs = {**TOKENS, "token_type_ids": kinds}
    np.testing.assert_array_equal(
        open_backend(f"hf/{folder}", inputs=declared).run(inputs)["logits"],
        logits(network, **inputs),
    )


def test_the_content_is_that_of_the_files(bert: tuple[Any, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bert[1], copy)
    assert (
        open_backend(f"hf/{copy}").spec.content_id == open_backend(f"hf/{bert[1]}").spec.content_id
    )
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.1}))
    assert (
        open_backend(f"hf/{copy}").spec.content_id != open_backend(f"hf/{bert[1]}").spec.content_id
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Hugging Face, and a network in which nothing answers."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path


def test_names_are_looked_up_in_the_cache(bert: tuple[Any, Path], cache: Path) -> None:
    repository = cache / "models--someone--tiny"
    shutil.copytree(bert[1], repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    opened = open_backend("hf/someone/tiny")
    assert opened.spec.content_id == open_backend(f"hf/{bert[1]}").spec.content_id


def test_nothing_is_downloaded_unless_asked_for(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"not in the local cache.*--download"):
        open_backend("hf/someone/missing")
    with pytest.raises(ModelError, match="hf/someone/missing cannot be downloaded: "):
        open_backend("hf/someone/missing", download=True)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def of_unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Own"]}))


def with_another_head(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForMaskedLM"]})
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_weights, "no .safetensors, and pickled weights are not opened"),
        (without_config, "no config.json beside its weights"),
        (of_unknown_architecture, "architecture Own, which transformers .* does not have"),
        (with_another_head, r"has no weights of cls\."),
    ],
)
def test_incomplete_folders_are_refused(
    bert: tuple[Any, Path], tmp_path: Path, change: Any, words: str
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(bert[1], folder)
    change(folder)
    with pytest.raises(ModelError, match=words):
        open_backend(f"hf/{folder}")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (("pixel_values:UINT8:-1,1,32,32",), "the model takes pixel_values:UINT8:-1,3,32,32"),
        (("image:UINT8:-1,3,32,32",), "image:UINT8:-1,3,32,32 was declared as an input"),
        (("pixel_values:FP16:-1,3,32,32",), "FP32 for images that are scaled already"),
        (("pixel_values:UINT8:-1,3,48,48",), "does not run on an example"),
    ],
)
def test_other_images_are_refused(
    vit: tuple[Any, Path], declared: Sequence[str], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        open_backend(f"hf/{vit[1]}", inputs=specs(*declared))


def test_images_without_a_processor_are_declared(vit: tuple[Any, Path], tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(vit[1], folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="declare them, as --input pixel_values:FP32:DIMS"):
        open_backend(f"hf/{folder}")
    declared = specs("pixel_values:FP32:-1,3,32,32")
    assert open_backend(f"hf/{folder}", inputs=declared).spec.inputs == declared


def test_images_without_a_fixed_size_are_refused(vit: tuple[Any, Path], tmp_path: Path) -> None:
    folder = tmp_path / "unfixed"
    shutil.copytree(vit[1], folder)
    changed = {**PROCESSOR, "do_center_crop": False, "size": {"longest_edge": 512}}
    (folder / "preprocessor_config.json").write_text(json.dumps(changed))
    with pytest.raises(ModelError, match=r"no fixed size .*'longest_edge': 512"):
        open_backend(f"hf/{folder}")


def test_a_library_that_does_not_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModelError, match="timm cannot be imported: built for another torch"):
        open_backend("timm/resnet50")


def test_a_name_is_checked_without_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_model("hf/someone/model")
    assert model_name("timm/resnet50.a1_in1k") == "resnet50.a1_in1k"
    with pytest.raises(ModelError, match="PyTorch, which this backend does not run"):
        check_model("hf/someone/model", "onnx")
    monkeypatch.setattr("edl.teacher.backends.model_source.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"timm/resnet50 needs timm: .*pip install"):
        check_model("timm/resnet50")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "resnet50").mkdir()
    with pytest.raises(ModelError, match="no model in timm/resnet50"):
        check_model("timm/resnet50")  # a path that exists is a path


def test_weights_alone_say_what_else_is_needed(bert: tuple[Any, Path]) -> None:
    with pytest.raises(ModelError, match=r"give its folder with the config\.json as hf/FOLDER"):
        open_backend(str(bert[1] / "model.safetensors"))


def test_fingerprint_shows_the_preprocessing(vit: tuple[Any, Path]) -> None:
    command = python_command("fingerprint", "edl.teacher", "fingerprint", f"hf/{vit[1]}")
    process = start(command)
    try:
        line = process.expect(r"^preprocess +(UINT8 .*)$", 60.0)[1]
    finally:
        process.stop()
    assert line == "UINT8 / 255, minus (0.1, 0.2, 0.3), divided by (0.4, 0.5, 0.6)"


def test_a_folder_that_changes_while_it_is_loaded_is_refused(
    vit: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, original = vit
    folder = Path(shutil.copytree(original, tmp_path / "vit"))
    read = type(network).from_pretrained

    def read_and_replace(*arguments: Any, **options: Any) -> Any:
        opened = read(*arguments, **options)
        shutil.copy(original / "config.json", folder / "new")
        (folder / "new").replace(folder / "config.json")
        return opened

    monkeypatch.setattr(type(network), "from_pretrained", read_and_replace)
    with pytest.raises(ModelError, match="changed while it was loaded"):
        open_backend(f"hf/{folder}")
