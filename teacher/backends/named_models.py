"""Models of PyTorch by name: `timm/NAME`, `hf/NAME` (transformers) and `torchvision/NAME`.

NAME may also be a folder with `config.json` and safetensors, except for torchvision. Weights are
fetched from the network only if the user allows it. No code of a repository is run. Pickles can
execute code, so they are not opened, except the weights of torchvision: they are first loaded with
`weights_only`, which refuses code.

Images arrive as UINT8 [N, channels, height, width] and are scaled by the model's own configuration.
An input that the user declares as FP32, or that a preprocessing step converts to FP32, is not
scaled.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...proto.datatypes import FREE, TensorSpec
from ...runtime.errors import ModelError
from ...runtime.files import file_stamps
from .framework import first_line, loading_errors
from .model_source import (
    NAMED_PACKAGES,
    ModelSettings,
    check_named,
    hash_of_files,
)
from .preprocess import content_with_step
from .torch import LoadedNetwork

#: The inputs of a model for text; those that it does not take are left out.
_TEXT_INPUTS: Final = ("input_ids", "attention_mask")


@dataclass(frozen=True, slots=True)
class _ImageSpec:
    """The form of the images that a network takes.

    Attributes:
        input: name of the network's input.
        shape: channels, height and width.
        mean: by channel; subtracted from the colours after the division by `divisor`.
        std: by channel; divides the colours after the subtraction of `mean`.
        divisor: divides the colours, which are 0 to 255, before the other two steps.
        resizing: how the sender must resize images, in words.
    """

    input: str
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resizing: str
    divisor: float = 255.0

    @property
    def scaling(self) -> str:
        """The scaling of UINT8 colours, in words."""
        mean, std = (
            ", ".join(f"{value:g}" for value in values) for values in (self.mean, self.std)
        )
        return f"UINT8 / {self.divisor:g}, minus ({mean}), divided by ({std})"

    def inputs(self, declared: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the inputs' specs; `declared` may set another size, or FP32. Raises ModelError."""
        channels = self.shape[0]
        default = TensorSpec(self.input, "UINT8", (FREE, *self.shape))
        if not declared:
            return (default,)
        for tensor in declared:
            name, datatype, shape = tensor.name, tensor.datatype, tensor.shape
            if (
                (name, len(shape)) != (self.input, 4)
                or datatype not in ("UINT8", "FP32")
                or shape[1] not in (channels, FREE)
            ):
                raise ModelError(
                    f"{tensor} was declared as an input; the model takes {default}: declare "
                    "this, with another height or width if the network supports it, or as FP32 for "
                    "images that are scaled already"
                )
        return tuple(declared)

    def scaler(self, torch: Any, device: Any) -> Callable[[Any], Any]:
        """Return a function that scales a batch of UINT8 colours on the device."""
        mean, std = (
            torch.tensor(values, device=device).reshape(1, -1, 1, 1)
            for values in (self.mean, self.std)
        )
        return lambda colours: colours.float().div(self.divisor).sub(mean).div(std)


@dataclass(frozen=True, slots=True)
class _OpenedNetwork:
    """A network on the CPU.

    Attributes:
        network: a torch.nn.Module.
        files: weights, and configuration if there is any; the content hash covers them.
        images: the form of the images that it takes; None if it takes something else.
        by_keyword: whether it takes inputs by keyword; then some outputs may not be tensors.
        stamps: `file_stamps` of the files of which the network is made, taken before it is made.
            These files come first in `files`.
    """

    network: Any
    files: Sequence[Path]
    images: _ImageSpec | None
    stamps: Sequence[object]
    by_keyword: bool = False


def load(model: str, torch: Any, device: Any, settings: ModelSettings) -> LoadedNetwork:
    """Load a named model.

    Args:
        model: its name.
        torch: the module.
        device: where the network will run.
        settings: how to run it. For images, the declared inputs select another size, or FP32; for
            other networks, they replace the default inputs, `input_ids` and `attention_mask`.

    Raises:
        ModelError: the library, the model or its weights are missing, or an input does not fit.
    """
    check_named(model)
    prefix, _, name = model.partition("/")
    package = NAMED_PACKAGES[prefix]
    try:
        version = f"{package} {importlib.import_module(package).__version__}"
    except Exception as error:  # such as a RuntimeError of a torchvision for another torch
        raise ModelError(f"{package} cannot be imported: {first_line(error)}") from error
    with loading_errors(version, Path(model), package):
        opened = _OPENERS[prefix](name, settings.download)
    content = hash_of_files(opened.files)
    if file_stamps(opened.files[: len(opened.stamps)]) != list(opened.stamps):
        raise ModelError(f"{model} changed while it was loaded: try again")
    network = opened.network.float().to(device).eval()
    declared = settings.inputs or settings.preprocessed_inputs()
    images, scaling, scale = opened.images, "", None
    if images is None:
        inputs = tuple(declared) or _text_inputs(model, network)
    else:
        inputs = images.inputs(declared)
        if inputs[0].datatype == "UINT8":
            scaling, scale = images.scaling, images.scaler(torch, device)
    names = [tensor.name for tensor in inputs]

    def call(*tensors: Any) -> Any:
        if scale is not None:
            tensors = tuple(map(scale, tensors))
        if not opened.by_keyword:
            return network(*tensors)
        outputs = network(**dict(zip(names, tensors, strict=True)), return_dict=True)
        return {key: value for key, value in outputs.items() if isinstance(value, torch.Tensor)}

    return LoadedNetwork(
        name=model,
        platform="torch_module",
        call=call,
        inputs=inputs,
        content_id=content_with_step(content, f"{package} {scaling}"),
        preprocessing=(images.resizing, scaling) if images is not None and scaling else (),
        libraries=(version.replace(" ", "-"),),
    )


def _open_timm(name: str, download: bool) -> _OpenedNetwork:
    import timm
    from timm.data import resolve_model_data_config

    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _repository_folder(
            f"timm/{name}", name if "/" in name else _timm_repository(name), download
        )
    files = _model_files(folder)
    stamps = file_stamps(files)
    network = timm.create_model(f"local-dir:{folder}", pretrained=True)
    config = resolve_model_data_config(network)
    channels, height, width = config["input_size"]
    side = int(min(height, width) / config["crop_pct"])
    return _OpenedNetwork(
        network,
        files,
        _ImageSpec(
            "image",
            (channels, height, width),
            tuple(config["mean"]),
            tuple(config["std"]),
            f"resize the shorter side of images to {side} ({config['interpolation']}), then take a "
            f"{config['crop_mode']} crop of {height} x {width}",
        ),
        stamps=stamps,
    )


def _timm_repository(name: str) -> str:
    """Return the Hugging Face repository with the weights of a timm model. Raises ModelError."""
    import timm

    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise ModelError(f"there are no weights timm/{name}: {first_line(error)}") from None
    if config is None:
        from difflib import get_close_matches

        similar = ", ".join(get_close_matches(name, timm.list_models(), n=3))
        raise ModelError(
            f"timm has no model {name}" + (f": did you mean {similar}?" if similar else "")
        )
    if not config.hf_hub_id:
        raise ModelError(
            f"timm has no weights of {name}: choose another model, or a folder with weights"
        )
    repository: str = config.hf_hub_id
    return repository


def _open_transformers(name: str, download: bool) -> _OpenedNetwork:
    import transformers

    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _repository_folder(f"hf/{name}", name, download)
    files = _model_files(folder)
    stamps = file_stamps(files)
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    architecture = next(iter(config.architectures or ()), "")
    network_class = getattr(transformers, architecture, None)
    if network_class is None:
        raise ModelError(
            f"hf/{name} is of architecture {architecture or 'unknown'}, which transformers "
            f"{transformers.__version__} does not have, and code of a repository is not run: load "
            "it in a factory, --model module:function"
        )
    network, loading_info = network_class.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    if missing := sorted(loading_info["missing_keys"]):
        raise ModelError(f"hf/{name} has no weights of {missing[0]} ({len(missing)} are missing)")
    if hasattr(network.config, "use_cache"):
        network.config.use_cache = False  # each batch is one forward pass
    processor = folder / "preprocessor_config.json"
    images = None
    if network.main_input_name == "pixel_values" and processor.is_file():
        files.append(processor)
        images = _image_spec_of(json.loads(processor.read_text()), network.config)
    return _OpenedNetwork(network, files, images, by_keyword=True, stamps=stamps)


def _image_spec_of(processor: Mapping[str, Any], config: Any) -> _ImageSpec:
    """Return the form of a transformers model's images, from its processor's configuration."""
    channels = getattr(config, "num_channels", 3)
    size = processor.get("size") or config.image_size
    cropped = processor.get("crop_size") if processor.get("do_center_crop") else None
    height, width = _sides(cropped or size)
    if isinstance(size, Mapping) and "shortest_edge" in size:
        resizing = f"resize the shorter side of images to {size['shortest_edge']}"
    else:
        resizing = "resize images to {} x {}".format(*_sides(size))
    if cropped:
        resizing += f", then take a center crop of {height} x {width}"
    neutral = ([0.0] * channels, [1.0] * channels)
    mean, std = (
        (processor["image_mean"], processor["image_std"])
        if processor.get("do_normalize", "image_mean" in processor)
        else neutral
    )
    factor = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1
    return _ImageSpec(
        "pixel_values", (channels, height, width), tuple(mean), tuple(std), resizing, 1 / factor
    )


def _sides(size: int | Sequence[int] | Mapping[str, int]) -> tuple[int, int]:
    """Return height and width, in each of the forms in which transformers writes a size."""
    if isinstance(size, Mapping):
        square = size.get("shortest_edge", 0)
        height, width = size.get("height", square), size.get("width", square)
        if not (height and width):  # such as a longest edge alone
            raise ModelError(
                f"the model's images have no fixed size ({dict(size)}): load it in a factory, "
                "--model module:function"
            )
        return height, width
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _text_inputs(model: str, network: Any) -> tuple[TensorSpec, ...]:
    arguments = inspect.signature(network.forward).parameters
    if network.main_input_name != "input_ids":
        raise ModelError(
            f"the inputs of {model} are not known: declare them, as --input "
            f"{network.main_input_name}:FP32:DIMS"
        )
    return tuple(
        TensorSpec(name, "INT64", (FREE, FREE)) for name in _TEXT_INPUTS if name in arguments
    )


def _open_torchvision(name: str, download: bool) -> _OpenedNetwork:
    import torch
    from torchvision.models import get_model, get_model_weights

    architecture, _, tag = name.partition(".")
    try:
        all_weights = get_model_weights(architecture)
        weights = all_weights[tag] if tag else all_weights.DEFAULT
    except (AttributeError, KeyError, ValueError):
        raise ModelError(f"torchvision has no weights {name}: write NAME or NAME.TAG") from None
    transforms = weights.transforms()
    if not hasattr(transforms, "mean"):
        raise ModelError(
            f"torchvision/{name} does not take images as one array: load it in a factory, "
            "--model module:function"
        )
    file = Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
    if not file.is_file() and not download:
        raise ModelError(_not_cached(f"torchvision/{name}", f"put {weights.url} at {file}"))
    weights.get_state_dict(check_hash=True, weights_only=True)  # downloads; refuses pickled code
    stamps = file_stamps([file])
    side, interpolation = transforms.resize_size[0], transforms.interpolation.value
    height = width = getattr(transforms, "crop_size", [side])[0]
    return _OpenedNetwork(
        get_model(architecture, weights=weights),
        [file],
        _ImageSpec(
            "image",
            (3, height, width),
            tuple(transforms.mean),
            tuple(transforms.std),
            f"resize the shorter side of images to {side} ({interpolation}), then take a center "
            f"crop of {height} x {width}",
        ),
        stamps=stamps,
    )


def _repository_folder(model: str, repository: str, download: bool) -> Path:
    """Return the folder in the local cache that holds a repository of Hugging Face.

    Raises:
        ModelError: it is not in the cache, and cannot or must not be downloaded.
    """
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors"]
    try:
        folder = snapshot_download(
            repository, allow_patterns=patterns, local_files_only=not download
        )
    except Exception as error:  # of the file system, the network, or the library
        if download:
            raise ModelError(f"{model} cannot be downloaded: {first_line(error)}") from error
        raise ModelError(_not_cached(model, "name a folder that has them")) from None
    return Path(folder)


def _not_cached(model: str, alternative: str) -> str:
    return (
        f"the weights of {model} are not in the local cache: fetch them with 'edl teacher "
        f"fingerprint {model} --download', or {alternative}"
    )


def _model_files(folder: Path) -> list[Path]:
    """Return the configuration and the weights in a folder. Raises ModelError."""
    weights = sorted(folder.glob("*.safetensors"))
    config = folder / "config.json"
    if not weights:
        raise ModelError(
            f"{folder} has no .safetensors, and pickled weights are not opened: save the model "
            "with safe_serialization=True"
        )
    if not config.is_file():
        raise ModelError(f"{folder} has no config.json beside its weights")
    return [config, *weights]


_OPENERS: Final[Mapping[str, Callable[[str, bool], _OpenedNetwork]]] = {
    "timm": _open_timm,
    "hf": _open_transformers,
    "torchvision": _open_torchvision,
}
