"""A model is found by folder, prefix or file; what is not one is named with what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import ModelError
from edl.teacher.backends.open import check_model, is_factory
from edl.teacher.backends.paddle_files import find_model


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
        files = find_model(str(way))
        assert files.program == program
        assert files.weights == tmp_path / f"{name}.pdiparams"


def test_other_files_in_the_folder_do_not_disturb(tmp_path: Path) -> None:
    program = model(tmp_path, "net")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README").write_text("")
    assert find_model(str(tmp_path)).program == program


def test_a_folder_of_two_models_asks_which(tmp_path: Path) -> None:
    model(tmp_path, "a")
    model(tmp_path, "b")
    with pytest.raises(ModelError, match=r"more than one model \(a.json, b.json\)"):
        find_model(str(tmp_path))


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model at /nope: expected a folder"):
        find_model("/nope")
    with pytest.raises(ModelError, match=r"no model in .*: expected a .json or .pdmodel"):
        find_model(str(tmp_path))
    stranger = tmp_path / "net.onnx"
    stranger.write_text("")
    with pytest.raises(ModelError, match="not an exported Paddle model"):
        find_model(str(stranger))
    program = model(tmp_path, "net")
    program.with_suffix(".pdiparams").unlink()
    with pytest.raises(ModelError, match="no weights beside it"):
        find_model(str(program))


def test_the_content_id_is_of_the_content_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    here, there = model(tmp_path, "a"), model(tmp_path / "there", "b")
    first = find_model(str(here)).content_id()
    assert find_model(str(there)).content_id() == first
    # The same bytes, cut elsewhere, are another model.
    there.write_bytes(b"programw")
    there.with_suffix(".pdiparams").write_bytes(b"eights")
    assert find_model(str(there)).content_id() != first


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
        find_model("a" * 300)
