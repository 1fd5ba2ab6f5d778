"""mkdocs hook: write all commands and their variables into `reference/cli.md`.

The page has two marks, which the results of `commands()` and `variables()` replace. Both read the
command line itself, as `--help` does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

OPTIONS: Final = "Options"


@dataclass(frozen=True, slots=True)
class Option:
    """An option or argument, as its help shows it.

    Attributes:
        names: flags with the type of their value.
        text: description.
        variables: environment variables that set it, with a description of each.
        default: as the help shows it; empty: none.
        limits: bounds of its value, or "required"; empty: none.
        panel: group of options in the help.
    """

    names: str
    text: str
    variables: Mapping[str, str]
    default: str
    limits: str
    panel: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command, as its help shows it."""

    path: str
    text: str
    usage: str
    options: tuple[Option, ...]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each mark by its generated text."""
    for mark, write in MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, write())
    return markdown


def walk() -> Iterator[Command]:
    """Yield all commands of `edl`, each group before its commands."""
    import typer

    from edl.cli import command_line

    yield from _walk(typer.main.get_command(command_line()), "edl", None)


def commands() -> str:
    """Return all commands in Markdown: for each a heading, its help, and tables of options."""
    return "\n\n".join(_section(command) for command in walk())


def variables() -> str:
    """Return a table of all variables, with the commands that read them."""
    readers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command in walk():
        for option in command.options:
            for name, text in option.variables.items():
                readers[name][_first_sentence(text)].append(command.path)
    rows = ["| variable | read by | what it is |", "|---|---|---|"]
    for name, texts in sorted(readers.items()):
        paths = dict.fromkeys(path for found in texts.values() for path in found)
        where = ", ".join(f"[`{path}`](cli.md#{_anchor(path)})" for path in paths)
        rows.append(f"| `{name}` | {where} | {_cell(' / '.join(texts))} |")
    return "\n".join(rows)


MARKS: Final[dict[str, Callable[[], str]]] = {
    "<!-- all commands -->": commands,
    "<!-- all variables -->": variables,
}


def _walk(command: Any, path: str, parent: Any) -> Iterator[Command]:
    context = command.make_context(path.split()[-1], [], parent=parent, resilient_parsing=True)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    found = (_option(one, context) for one in command.get_params(context))
    options = tuple(one for one in found if one is not None)
    yield Command(path, _plain(command.help or ""), usage, options)
    for name in getattr(command, "list_commands", lambda _: ())(context):
        yield from _walk(command.get_command(context, name), f"{path} {name}", context)


def _option(parameter: Any, context: Any) -> Option | None:
    """Return a parameter as the help shows it; None for --help and hidden parameters."""
    from edl.runtime.structured_option import variables_of

    record = parameter.get_help_record(context)
    if record is None or parameter.name == "help":
        return None
    names, description = record
    text, _, extra = _plain(description).partition("  [")
    if description.startswith("["):
        text, extra = "", _plain(description)[1:]
    facts = re.split(r"; (?=default: |env var: |required$|\S+[<>]=?)", extra.removesuffix("]"))
    variables = {name: _plain(about) for name, about in variables_of(parameter).items()}
    default = next((one[9:] for one in facts if one.startswith("default: ")), "")
    others = [one for one in facts if one and not one.startswith(("env var: ", "default: "))]
    panel = getattr(parameter, "rich_help_panel", None) or OPTIONS
    return Option(names, text, variables, default, ", ".join(others), panel)


def _section(command: Command) -> str:
    level = "##" if command.path.count(" ") < 2 else "###"
    lines = [f"{level} `{command.path}`", "", command.text, "", f"    {command.usage}"]
    panels: dict[str, list[Option]] = defaultdict(list)
    for option in command.options:
        panels[option.panel].append(option)
    for panel, options in panels.items():
        lines += ["", *([f"**{panel}**", ""] if panel != OPTIONS else [])]
        lines += ["| option | what it is | default | variable |", "|---|---|---|---|"]
        for one in options:
            text = f"{one.text} ({one.limits})" if one.limits else one.text
            cells = (
                f"`{one.names}`",
                _cell(text),
                _quoted(one.default),
                _quoted(", ".join(one.variables)),
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return a help text without markup for terminals."""
    return text.replace("\\[", "[").replace("\b", "").strip()


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".")


def _cell(text: str) -> str:
    """Escape a text for a cell of a table."""
    for mark in ("\\", "*", "<", "[", "|"):
        text = text.replace(mark, "&lt;" if mark == "<" else f"\\{mark}")
    return " ".join(text.split())


def _quoted(text: str) -> str:
    return f"`{text}`" if text else ""


def _anchor(path: str) -> str:
    return path.replace(" ", "-")
