"""A model is found by folder, prefix or file; what is not one is named with what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import ModelError
from edl.teacher.backends import content, onnx, paddle, torch
from edl.teacher.backends.factory import is_factory
from edl.teacher.backends.files import FOREIGN, find
from edl.teacher.backends.kind import Kind
from edl.teacher.backends.open import KINDS, check_model


def model(folder: Path, name: str, suffix: str = ".json") -> Path:
    program = folder / (name + suffix)
    program.write_bytes(b"program")
    (folder / (name + ".pdiparams")).write_bytes(b"weights")
    return program


@pytest.mark.parametrize("suffix", [".json", ".pdmodel"])
@pytest.mark.parametrize("name", ["net", "net.v2"])
def test_every_way_to_name_a_model_finds_it(tmp_path: Path, name: str, suffix: str) -> None:
    program = model(tmp_path, name, suffix)
    ways = [tmp_path, tmp_path / name, program, tmp_path / f"{name}.pdiparams"]
    for way in ways:
        found = find(str(way), KINDS)
        assert found.file == program
        assert found.kind is paddle.KIND


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".onnx", onnx.KIND), (".pt2", torch.KIND), (".pt", torch.KIND), (".ts", torch.KIND)],
)
def test_the_suffix_says_whose_a_file_is(tmp_path: Path, suffix: str, kind: Kind) -> None:
    file = tmp_path / f"net{suffix}"
    file.write_bytes(b"model")
    for way in (tmp_path, tmp_path / "net", file):
        found = find(str(way), KINDS)
        assert (found.kind, found.file) == (kind, file)
    with pytest.raises(ModelError, match=r"expected a .json or .pdmodel"):
        find(str(tmp_path), [paddle.KIND])


def test_other_files_in_the_folder_do_not_disturb(tmp_path: Path) -> None:
    program = model(tmp_path, "net")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README").write_text("")
    assert find(str(tmp_path), KINDS).file == program


def test_a_folder_of_two_models_asks_which(tmp_path: Path) -> None:
    model(tmp_path, "a")
    model(tmp_path, "b")
    with pytest.raises(ModelError, match=r"more than one model \(a.json, b.json\)"):
        find(str(tmp_path), KINDS)


def test_one_network_in_two_formats_asks_which_until_a_backend_is_named(tmp_path: Path) -> None:
    model(tmp_path, "net")
    (tmp_path / "net.onnx").write_bytes(b"model")
    for way in (tmp_path, tmp_path / "net"):
        with pytest.raises(ModelError, match=r"more than one model \(net.json, net.onnx\)"):
            find(str(way), KINDS)
        assert find(str(way), [onnx.KIND]).kind is onnx.KIND


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model at /nope: expected a folder"):
        find("/nope", KINDS)
    with pytest.raises(ModelError, match=r"no model in .*: expected a .json .*onnx.*pt2.*Torch"):
        find(str(tmp_path), KINDS)
    stranger = tmp_path / "net.txt"
    stranger.write_text("")
    with pytest.raises(ModelError, match="not a model that can be read"):
        find(str(stranger), KINDS)
    program = model(tmp_path, "net")
    program.with_suffix(".pdiparams").unlink()
    with pytest.raises(ModelError, match="no weights beside it"):
        find(str(program), KINDS)


@pytest.mark.parametrize("suffix", FOREIGN)
def test_a_format_that_nobody_reads_comes_with_the_way_from_there(
    tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"net{suffix}"
    file.write_bytes(b"model")
    for way in (tmp_path, file):
        with pytest.raises(ModelError, match=f"a file of .*{FOREIGN[suffix][1]}"):
            check_model(str(way))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_framework_that_is_not_installed_is_named_with_what_installs_it(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.files is None:
        assert not kind.package, "what runs functions alone is there wherever we are"
        return
    monkeypatch.setattr("edl.teacher.backends.kind.find_spec", lambda name: None)
    file = tmp_path / f"net{kind.files.suffixes[0]}"
    file.write_bytes(b"model")
    if kind.files.beside:
        file.with_suffix(kind.files.beside).write_bytes(b"weights")
    with pytest.raises(ModelError, match=rf"needs {kind.package}: pip install 'edl-dist\["):
        check_model(str(file))
    with pytest.raises(ModelError, match="pip install"):
        check_model("nets:make", kind.name)


def test_the_content_id_is_of_the_content_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    here, there = model(tmp_path, "a"), model(tmp_path / "there", "b")

    def content_id(program: Path) -> str:
        return content.of_files([program, program.with_suffix(".pdiparams")])

    first = content_id(here)
    assert content_id(there) == first
    # The same bytes, cut elsewhere, are another model.
    there.write_bytes(b"programw")
    there.with_suffix(".pdiparams").write_bytes(b"eights")
    assert content_id(there) != first
    with pytest.raises(ModelError, match=r"cannot read .*No such file"):
        content.of_files([tmp_path / "gone"])


@pytest.mark.parametrize("text", ["nets:make", "my.package.nets:make"])
def test_a_factory_is_told_from_a_path(text: str) -> None:
    assert is_factory(text)
    check_model(text)


@pytest.mark.parametrize(
    "text", ["/models/a:b", "./nets:make", "nets", "nets:", ":make", "a:b.json"]
)
def test_a_path_is_told_from_a_factory(text: str) -> None:
    assert not is_factory(text)
    with pytest.raises(ModelError):
        check_model(text)


def test_a_path_that_cannot_be_looked_at_is_said_in_words() -> None:
    with pytest.raises(ModelError, match=r"cannot look for a model at a+: File name too long"):
        find("a" * 300, KINDS)
