"""Whether a command that stands in a file of `deploy/` is one that `edl` really takes.

    check(["edl", "coordinator", "serve", "--port", "7010"], {"EDL_TTL": "6"})

Every word goes through the real command line, which parses it and does nothing. What a shell,
systemd or Kubernetes puts in at the start has to be put in before: nothing is expanded here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import PurePath
from typing import Any
from unittest import mock

import typer

from edl.commands import app as edl
from edl.teacher.cli import app as teacher

#: Programs of the package, by the name of their file or of their module.
PROGRAMS = {"edl": edl, "edl-teacher": teacher}
MODULES = {"edl": edl, "edl.teacher": teacher}
#: Read by the package beside its options, or by libraries that it starts.
BESIDE_OPTIONS = frozenset({"EDL_DEBUG"})


class WrongCommand(AssertionError):
    """A command, or a variable beside it, that `edl` would refuse or overlook."""


def is_ours(argv: Sequence[str]) -> bool:
    """Whether `argv` starts a program of the package, by its file or by `python -m`."""
    return _program(argv) is not None


def check(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Find out that a command line is one that `edl` takes, with these variables beside it.

    Args:
        argv: all words, the program first; `/opt/edl/bin/edl` is `edl`.
        environment: what the file sets for it. Each `EDL_*` in it has to be read by this very
            command. Variables without that prefix are left out of account.

    Returns:
        The options and arguments that the command would be called with, by the names of its
        parameters; empty where it would show help or a version.

    Raises:
        WrongCommand: an option, argument, subcommand or value is none; a variable is not read.
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
        except typer.Exit:  # --help and --version are parsed by doing what they say
            return {}
        except Exception as error:
            if getattr(error, "format_message", None) is None:
                raise
            raise WrongCommand(f"{' '.join(argv)}: {_message(error)}") from None
    if unread := sorted(set(ours) - read - BESIDE_OPTIONS):
        raise WrongCommand(f"{' '.join(argv)}: does not read {', '.join(unread)}")
    return values


@cache
def _command(app: typer.Typer) -> Any:
    """The command line that Typer makes of an app; it takes a tenth of a second."""
    return typer.main.get_command(app)


def _program(argv: Sequence[str]) -> tuple[str, typer.Typer, list[str]] | None:
    """Name, command line and arguments of what `argv` starts."""
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
    """Parse down to the last subcommand; the variables that it reads, and its values."""
    context: Any = None
    while True:
        context = command.make_context(name, list(arguments), parent=context)
        rest = [*context._protected_args, *context.args]
        if not hasattr(command, "resolve_command"):
            return _variables(command.params), dict(context.params)
        if not rest:
            if not command.invoke_without_command:
                raise WrongCommand(f"{name}: a subcommand is missing")
            return _variables(command.params), dict(context.params)
        name, command, arguments = command.resolve_command(context, rest)


def _variables(parameters: Iterable[Any]) -> set[str]:
    """The environment variables of a command's options."""
    found: set[str] = set()
    for parameter in parameters:
        named = parameter.envvar
        found.update([named] if isinstance(named, str) else named or ())
    return found


def _message(error: Any) -> str:
    """What the command line says, also where it would show help in the place of an error."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return "it is not complete: a subcommand or an option is missing"
    return str(error.format_message())
