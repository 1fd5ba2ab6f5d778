"""Check that `edl` accepts a command of a file in `deploy/` or of a page.

    check(["edl", "coordinator", "serve", "--listen", "7010"], {"EDL_TTL": "6"})

The real command line parses the words and does nothing. Nothing is expanded: not what a shell,
systemd or Kubernetes would replace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import PurePath
from typing import Any
from unittest import mock

import typer

from edl.cli import command_line
from edl.coordinator.ops.options import FIELD_VARIABLES
from edl.runtime.structured_option import variables_of
from edl.teacher.cli import app as teacher

#: Programs of the package, by the name of their file or of their module.
EDL = command_line()
PROGRAMS = {"edl": EDL, "edl-teacher": teacher}
MODULES = {"edl": EDL, "edl.teacher": teacher}
#: Read by the package beside its options, or by libraries that it starts.
BESIDE_OPTIONS = frozenset({"EDL_DEBUG"})


class WrongCommand(AssertionError):
    """A command, or a variable beside it, that `edl` would refuse or overlook."""


def is_ours(argv: Sequence[str]) -> bool:
    """Whether `argv` starts a program of the package, by its file or by `python -m`."""
    return _program(argv) is not None


def check(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Check a command line; `/opt/edl/bin/edl` is `edl`.

    The command has to read each `EDL_*` of `environment`. Returns the values of its options and
    arguments; empty for --help and --version. Raises WrongCommand.
    """
    found = _program(argv)
    if found is None:
        raise WrongCommand(f"not a program of the package: {' '.join(argv)}")
    name, app, arguments = found
    ours = {key: value for key, value in (environment or {}).items() if key.startswith("EDL_")}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EDL_")}
    with mock.patch.dict(os.environ, {**kept, **ours}, clear=True):
        try:
            read, values = _parse(_command(app), name, arguments)
        except Exception as error:
            if getattr(error, "format_message", None) is None:
                raise
            raise WrongCommand(f"{' '.join(argv)}: {_message(error)}") from None
    if "context" in values:
        read |= set(FIELD_VARIABLES.values())
    if unread := sorted(set(ours) - read - BESIDE_OPTIONS):
        raise WrongCommand(f"{' '.join(argv)}: does not read {', '.join(unread)}")
    return values


@cache
def _command(app: typer.Typer) -> Any:
    """The command line that Typer makes of an app; it takes a tenth of a second."""
    return typer.main.get_command(app)


def _program(argv: Sequence[str]) -> tuple[str, typer.Typer, list[str]] | None:
    if not argv:
        return None
    name, *arguments = argv
    name = PurePath(name).name
    if name in PROGRAMS:
        return name, PROGRAMS[name], arguments
    if name.startswith("python") and "-m" in arguments:
        module, *arguments = arguments[arguments.index("-m") + 1 :]
        if module in MODULES:
            return module, MODULES[module], arguments
    return None


def _parse(command: Any, name: str, arguments: list[str]) -> tuple[set[str], dict[str, Any]]:
    """The variables that the last subcommand reads, and its values; it is not run."""
    invoked: list[Any] = []

    def record(context: Any, /, *_: object, **__: object) -> None:
        invoked.append(context)

    with mock.patch.object(command.context_class, "invoke", record):
        command.main(list(arguments), name, standalone_mode=False)
    if not invoked:  # --help and --version are done by parsing them
        return set(os.environ), {}
    read: set[str] = set()
    for parameter in invoked[-1].command.params:
        read.update(variables_of(parameter))
    return read, dict(invoked[-1].params)


def _message(error: Any) -> str:
    if type(error).__name__ == "NoArgsIsHelpError":
        return "it is not complete: a subcommand or an option is missing"
    return str(error.format_message())
