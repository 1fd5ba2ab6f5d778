"""Finds the two files of an exported Paddle model by the path that a user gave, and hashes them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ...errors import ModelError

#: Programs as Paddle 3 writes them (PIR, JSON) and as Paddle 2 did (protobuf).
_PROGRAMS = (".json", ".pdmodel")
_WEIGHTS = ".pdiparams"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The program and the weights of one exported model."""

    program: Path
    weights: Path

    def content_id(self) -> str:
        """SHA-256 of both files' content: their names and their place do not matter."""
        digest = hashlib.sha256()
        for file in (self.program, self.weights):
            digest.update(file.stat().st_size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()


def find_model(path: str) -> ModelFiles:
    """The model at `path`: a folder that holds one, a prefix of its two files, or either file.

    Raises:
        ModelError: there is none, or more than one, or one may not look.
    """
    try:
        return _find(Path(path).expanduser(), path)
    except OSError as error:
        raise ModelError(f"cannot look for a model at {path}: {error.strerror}") from None


def _find(given: Path, path: str) -> ModelFiles:
    if given.is_dir():
        programs = sorted(file for file in given.iterdir() if file.suffix in _PROGRAMS)
        found = [program for program in programs if program.with_suffix(_WEIGHTS).is_file()]
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise ModelError(f"{path} holds more than one model ({names}): name one of them")
    else:
        found = [program for program in _candidates(given) if program.is_file()][:1]
    if not found:
        raise ModelError(_missing(given))
    weights = found[0].with_suffix(_WEIGHTS)
    if not weights.is_file():
        raise ModelError(f"{found[0]} has no weights beside it: {weights} does not exist")
    return ModelFiles(found[0], weights)


def _candidates(given: Path) -> list[Path]:
    if given.suffix in _PROGRAMS:
        return [given]
    stem = given.with_suffix("") if given.suffix == _WEIGHTS else given
    return [stem.parent / (stem.name + suffix) for suffix in _PROGRAMS]


def _missing(given: Path) -> str:
    what = "a .json or .pdmodel file with a .pdiparams file of the same name beside it"
    if given.is_dir():
        return f"no model in {given}: expected {what}"
    if given.exists():
        return f"{given} is not an exported Paddle model: expected {what}"
    return f"no model at {given}: expected a folder, a prefix or a file: {what}"
