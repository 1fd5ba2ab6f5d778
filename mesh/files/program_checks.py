"""Checks of programs in YAML files: names, command lines and environment variables."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...coordinator.job_queue import is_name
from ...runtime.errors import UsageError

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_name(key: str, name: str) -> None:
    """Raise ValueError unless `name` is a valid name of a job, a service or a student."""
    if not is_name(name):
        raise ValueError(
            f"{key}: a name is 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or"
            f" digit, not {name!r:.100}"
        )


def check_program(
    train: str, command: str, reserved_options: tuple[str, ...], set_by_keys: str
) -> None:
    """Check that exactly one of `train` and `command` is given, and check its command line.

    Args:
        train: arguments of `edl student train` in shell syntax, the job file first.
        command: another program and its arguments in shell syntax.
        reserved_options: options that `train` must not have.
        set_by_keys: keys of the file that set these options.

    Raises:
        ValueError: both or neither is given, or the given command line is invalid.
    """
    if bool(train.strip()) == bool(command.strip()):
        raise ValueError(
            "expects one of `train: JOB.py --epochs 3` (edl student train) and"
            " `command: PROGRAM ...`"
        )
    check_words("command", command)
    words = check_words("train", train, reserved_options, set_by_keys)
    if "--dry-run" in words:
        raise ValueError("train: --dry-run starts no rank: remove it")
    if words and words[0].startswith("-"):
        raise ValueError(f"train: expects the job file first, got {words[0]!r}")


def check_words(
    key: str, text: str, reserved_options: tuple[str, ...] = (), set_by_keys: str = ""
) -> tuple[str, ...]:
    """Split a command line into words as a shell does, and check the words.

    Args:
        key: key of the file, for errors.
        text: the command line.
        reserved_options: options that the command line must not have.
        set_by_keys: keys of the file that set these options.

    Raises:
        ValueError: the text cannot be split, has a NUL character, or has a reserved option.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{key}: expects words in shell syntax: {error}") from None
    if "\0" in text:
        raise ValueError(f"{key}: arguments of a program cannot contain a NUL character")
    for option in (word.split("=")[0] for word in words):
        if option in reserved_options:
            raise ValueError(
                f"{key}: {option} is set from other keys of the file ({set_by_keys}), or by edl:"
                " remove it"
            )
    return words


def checked_folder(path: Path, folder: Path) -> Path:
    """Return the absolute path of the folder in which the programs of a file run.

    Args:
        path: path of the file.
        folder: value of the key `folder`; `Path()`: the folder that contains the file.

    Raises:
        UsageError: there is no such folder.
    """
    absolute = Path(os.path.abspath(path.parent if folder == Path() else folder))
    if not absolute.is_dir():
        raise UsageError(f"{path}: folder: there is no folder {absolute}")
    return absolute


def check_job_file(key: str, folder: Path, train: str) -> None:
    """Raise UsageError unless the job file, the first word of `train`, exists.

    Args:
        key: file and key, for the error.
        folder: working directory, where a relative path of the job file begins.
        train: arguments of `edl student train`.
    """
    job_file = folder / shlex.split(train)[0]
    if not job_file.is_file():
        raise UsageError(f"{key}: there is no file {job_file}")


def check_env(env: Mapping[str, str]) -> None:
    """Raise ValueError if a variable has an invalid name or value."""
    if invalid := [name for name in env if not _VARIABLE.fullmatch(name)]:
        raise ValueError(f"env: expects names of variables, got {invalid[0]!r:.100}")
    if invalid := [name for name, value in env.items() if "\0" in value]:
        raise ValueError(f"env: a variable cannot contain a NUL character: {invalid[0]} has one")
