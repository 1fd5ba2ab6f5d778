"""Count the commands of `edl` and their options, as `--help` shows them.

python tests/measure_cli.py [--each]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from edl.cli import command_line


def leaves(command: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield the path of each runnable command, and the number of its options."""
    group = getattr(command, "commands", None)
    if group is None or command.invoke_without_command:
        shown = [one for one in command.params if one.param_type_name == "option"]
        yield path, sum(not one.hidden for one in shown)
    for name, one in (group or {}).items():
        yield from leaves(one, f"{path} {name}")


def main() -> None:
    """Print the counts."""
    found = dict(leaves(typer.main.get_command(command_line()), "edl"))
    if "--each" in sys.argv[1:]:
        for path, options in found.items():
            print(f"{options:4} {path}")
    print(f"{len(found)} commands, {sum(found.values())} options")


if __name__ == "__main__":
    main()
