"""mkdocs hook: write the fields of our Kubernetes resources from their definitions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

CRDS: Final = Path(__file__).resolve().parents[2] / "deploy" / "operator" / "crds"
MARK: Final = "<!-- all resources -->"
#: Keyword of a schema -> its text in the table.
LIMITS: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
    "maxProperties": "at most {} of them",
    "pattern": "like `{}`",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark by the generated text."""
    return markdown.replace(MARK, resources()) if MARK in markdown else markdown


def resources() -> str:
    """Return all kinds in Markdown: description, fields and validation rules of each."""
    return "\n\n".join(_kind(yaml.safe_load(file.read_text("utf-8"))) for file in definitions())


def definitions() -> list[Path]:
    """Return the files of the definitions, by name."""
    return sorted(file for file in CRDS.glob("*.yaml") if file.stem != "kustomization")


def fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield every field below a schema: its path, its schema, and whether it is required."""
    required = schema.get("required", ())
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}", below, name in required
        yield from fields(below, f"{path}.{name}")
        yield from fields(below.get("items", {}), f"{path}.{name}[]")


def _kind(definition: Mapping[str, Any]) -> str:
    spec = definition["spec"]
    names, (version,) = spec["names"], spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    short = ", ".join(f"`{name}`" for name in names.get("shortNames", ()))
    lines = [
        f"## `{names['kind']}`",
        "",
        schema.get("description", ""),
        "",
        f"`apiVersion: {spec['group']}/{version['name']}`; `kubectl get {names['plural']}`, "
        f"for short {short}.",
    ]
    for part in ("spec", "status"):
        lines += ["", "| field | type | default | what it is |", "|---|---|---|---|"]
        lines += [_row(*field) for field in fields(schema["properties"][part], part)]
    lines += ["", "Messages of refused resources:", ""]
    lines += [f"- {_text(rule['message'])}" for rule in _rules(schema)]
    return "\n".join(lines)


def _row(path: str, schema: Mapping[str, Any], required: bool) -> str:
    kind = "integer or text" if schema.get("x-kubernetes-int-or-string") else schema.get("type", "")
    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
    parts = [schema.get("description", "")]
    parts += [text.format(schema[word]) for word, text in LIMITS.items() if word in schema]
    if "enum" in schema:
        parts.append("one of " + ", ".join(f"`{value}`" for value in schema["enum"]))
    text = "; ".join(part.rstrip(".") for part in parts if part)
    cells = (f"`{path}`" + " (required)" * required, kind, default, _text(text))
    return "| " + " | ".join(cells) + " |"


def _rules(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the validation rules of a schema and of all schemas below it."""
    yield from schema.get("x-kubernetes-validations", ())
    for below in schema.get("properties", {}).values():
        yield from _rules(below)
    if "items" in schema:
        yield from _rules(schema["items"])


def _text(text: str) -> str:
    """Escape a text for a list or a cell, except between backquotes."""
    parts = " ".join(text.split()).split("`")
    for at in range(0, len(parts), 2):
        for mark, safe in (("*", "\\*"), ("|", "\\|"), ("<", "&lt;")):
            parts[at] = parts[at].replace(mark, safe)
    return "`".join(parts)
