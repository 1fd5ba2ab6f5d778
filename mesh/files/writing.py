"""A frozen dataclass into a YAML file that `read` gives back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from ...errors import UsageError


def write(path: str | os.PathLike[str], value: object, heading: str = "") -> None:
    """Writes a description; the file is there whole or not at all.

    Args:
        path: of the file; one that is there is replaced.
        value: a dataclass of what `read` can read; what has its default is left out.
        heading: comment lines above it, without their `#`.

    Raises:
        UsageError: it cannot be written there.
    """
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    text = comment + yaml.safe_dump(_plain(value), sort_keys=False, allow_unicode=True, width=100)
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            if field.init and getattr(value, field.name) != field.default
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
