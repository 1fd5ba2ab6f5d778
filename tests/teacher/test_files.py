"""Finding a model by folder, prefix or file, and the backend for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edl.runtime.errors import ModelError, UsageError
from edl.runtime.extras import EXTRA_BY_PACKAGE
from edl.teacher.backends import framework, onnx, paddle, selection, torch
from edl.teacher.backends.model_source import (
    FOREIGN,
    BackendKind,
    ModelSettings,
    find_model,
    hash_of_files,
    is_factory,
)
from edl.teacher.backends.selection import KINDS, check_model, open_backend
from edl.tests.teacher.fakes import SPEC, FakeBackend, double_and_sum
from edl.tests.teacher.same_network import NAME


def save(folder: Path, name: str, suffix: str = ".json") -> Path:
    program = folder / (name + suffix)
    program.write_bytes(b"program")
    (folder / (name + ".pdiparams")).write_bytes(b"weights")
    return program


@pytest.mark.parametrize("suffix", [".json", ".pdmodel"])
@pytest.mark.parametrize("name", ["net", "net.v2"])
def test_a_model_is_found_by_folder_prefix_and_file(tmp_path: Path, name: str, suffix: str) -> None:
    program = save(tmp_path, name, suffix)
    for other in ("config.json", "README"):
        (tmp_path / other).write_text("{}")
    ways = [tmp_path, tmp_path / name, program, tmp_path / f"{name}.pdiparams"]
    for way in ways:
        found = find_model(str(way), KINDS)
        assert found.file == program
        assert found.kind is paddle.KIND


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".onnx", onnx.KIND), (".pt2", torch.KIND), (".pt", torch.KIND), (".ts", torch.KIND)],
)
def test_the_suffix_selects_the_backend(tmp_path: Path, suffix: str, kind: BackendKind) -> None:
    file = tmp_path / f"net{suffix}"
    file.write_bytes(b"model")
    for way in (tmp_path, tmp_path / "net", file):
        found = find_model(str(way), KINDS)
        assert (found.kind, found.file) == (kind, file)
    with pytest.raises(ModelError, match=r"expected a .json or .pdmodel"):
        find_model(str(tmp_path), [paddle.KIND])


def test_of_two_models_one_has_to_be_named(tmp_path: Path) -> None:
    save(tmp_path, "net")
    (tmp_path / "net.onnx").write_bytes(b"model")
    for way in (tmp_path, tmp_path / "net"):
        with pytest.raises(ModelError, match=r"more than one model \(net.json, net.onnx\)"):
            find_model(str(way), KINDS)
        assert find_model(str(way), [onnx.KIND]).kind is onnx.KIND
    save(tmp_path, "a")
    with pytest.raises(ModelError, match=r"more than one model \(a.json, net.json\)"):
        find_model(str(tmp_path), [paddle.KIND])


HUBS = ("resnet50", "microsoft/resnet-50", "timm/vit_base_patch16_224.augreg")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("/no/where", r"no model at /no/where \(there is no folder /no\): expected a folder"),
        ("https://example.com/net.onnx", "URLs are not opened"),
        *((hub, rf"no model at {hub} \(a model of a hub is named") for hub in HUBS),
        ("{}/empty-2", "empty-2: expected"),  # a folder without a model is no suggestion
        ("{}/link.onnx", r"the link leads to .*gone.onnx, which does not exist"),
        ("{}/resnett.onnx", r"did you mean .*/resnet.onnx\?"),
        ("{}/restnet.onnx", r"did you mean .*/resnet.onnx\?"),
        ("{}/empty-1", r"no model in .*: expected a .json .*onnx.*pt2.*Torch"),
        ("{}/net.txt", "not a model that can be read"),
        ("{}/alone.json", "no weights beside it"),
    ],
)
def test_missing_files_are_named(tmp_path: Path, model: str, words: str) -> None:
    (tmp_path / "empty-1").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "gone.onnx")
    for name in ("resnet.onnx", "net.txt", "alone.json"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=words):
        find_model(model.format(tmp_path), KINDS)


@pytest.mark.parametrize("suffix", FOREIGN)
def test_a_foreign_format_is_refused(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"net{suffix}"
    file.write_bytes(b"model")
    for way in (tmp_path, file):
        with pytest.raises(ModelError, match=f"a file of .*{FOREIGN[suffix][1]}"):
            check_model(str(way))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_missing_framework_is_named(
    tmp_path: Path, kind: BackendKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kind.files:
        assert not kind.package, "what runs functions alone is there wherever we are"
        return
    monkeypatch.setattr("edl.teacher.backends.model_source.find_spec", lambda name: None)
    file = tmp_path / f"net{kind.suffixes[0]}"
    file.write_bytes(b"model")
    if kind.companion_suffix:
        file.with_suffix(kind.companion_suffix).write_bytes(b"weights")
    extra = EXTRA_BY_PACKAGE[kind.package]
    with pytest.raises(ModelError, match=rf"needs {kind.package}: .*pip install .*\[{extra}\]"):
        check_model(str(file))
    with pytest.raises(ModelError, match="pip install"):
        check_model("nets:make", kind.name)


def test_the_content_id_depends_on_content_only(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    here, there = save(tmp_path, "a"), save(tmp_path / "there", "b")

    def content_id(program: Path) -> str:
        return hash_of_files([program, program.with_suffix(".pdiparams")])

    first = content_id(here)
    assert content_id(there) == first
    # The same bytes, cut elsewhere, are another model.
    there.write_bytes(b"programw")
    there.with_suffix(".pdiparams").write_bytes(b"eights")
    assert content_id(there) != first
    with pytest.raises(ModelError, match=r"cannot read .*No such file"):
        hash_of_files([tmp_path / "gone"])


def test_factories_and_paths() -> None:
    for text in ("nets:make", "my.package.nets:make"):
        assert is_factory(text)
        check_model(text)
    for text in ("/models/a:b", "./nets:make", "nets", "nets:", ":make", "a:b.json", "a" * 300):
        assert not is_factory(text)
        with pytest.raises(ModelError):
            check_model(text)


def test_an_unknown_backend_is_refused() -> None:
    for call in (check_model, open_backend):
        with pytest.raises(UsageError, match="no backend 'caffe': expected one of auto, paddle"):
            call(f"{NAME}:by_numpy", backend="caffe")


def test_the_cost_of_a_precision_is_told_of_each_output() -> None:
    def rounded(inputs: object) -> object:
        exact = double_and_sum(inputs)  # type: ignore[arg-type]
        exact["double"][:, 0] += 1e6
        return exact

    said = framework.describe_difference(FakeBackend(rounded), FakeBackend(), "bf16")  # type: ignore[arg-type]
    assert "sum differs by at most 0 " in said
    assert "double differs by at most 1e+06" in said


def test_a_model_that_changes_while_it_is_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its labels would be those of the former content, under the id of the new one."""
    file = tmp_path / "net.model"
    replacements = [b"replaced", b"longer than before"]

    def open_file(opened: Path, _: ModelSettings) -> FakeBackend:
        assert opened.read_bytes()
        if replacements:
            (tmp_path / "new").write_bytes(replacements.pop())
            (tmp_path / "new").replace(file)
        return FakeBackend(spec=replace(SPEC, content_id=hash_of_files([opened])))

    kind = BackendKind("fake", files="a .model file", suffixes=(".model",), open_file=open_file)
    monkeypatch.setattr(selection, "KINDS", (kind,))
    file.write_bytes(b"original")
    for _ in range(2):
        with pytest.raises(ModelError, match=r"net\.model changed while it was loaded"):
            open_backend(str(file))
    assert open_backend(str(file)).spec.content_id == hash_of_files([file])
