"""Structural schemas of definitions: defaults, pruning and validation, as an API server does it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Schema = Mapping[str, Any]

_KEEP = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"


#: Each rule of our definitions, by its text. The expression language itself is not emulated, so a
#: rule that is not among these fails the test that brings it.
RULES: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "self.minReplicas <= self.maxReplicas": lambda s: s["minReplicas"] <= s["maxReplicas"],
    "self.minNodes <= self.maxNodes": lambda s: s["minNodes"] <= s["maxNodes"],
    "has(self.train) != has(self.command)": lambda s: ("train" in s) != ("command" in s),
    "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$')": lambda s: (
        re.search("^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$", s["metadata"]["name"]) is not None
    ),
    "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$')": lambda s: (
        re.search("^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$", s["metadata"]["name"]) is not None
    ),
}


def defaulted(value: Any, schema: Schema) -> Any:
    """The value with the defaults of its schema, also in place of nulls."""
    if isinstance(value, dict):
        found = dict(value)
        for key, part in schema.get("properties", {}).items():
            if key in found and found[key] is None and "default" in part:
                del found[key]
            if key not in found and "default" in part:
                found[key] = copy.deepcopy(part["default"])
            if key in found:
                found[key] = defaulted(found[key], part)
        return found
    if isinstance(value, list) and "items" in schema:
        return [defaulted(one, schema["items"]) for one in value]
    return value


def pruned(value: Any, schema: Schema) -> Any:
    """The value without the fields that its schema does not know."""
    if isinstance(value, dict):
        if schema.get(_KEEP):
            return value
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if properties is not None:
            return {
                key: pruned(one, properties[key]) for key, one in value.items() if key in properties
            }
        if isinstance(others, Mapping):
            return {key: pruned(one, others) for key, one in value.items()}
        return value if others is not None else {}
    if isinstance(value, list) and "items" in schema:
        return [pruned(one, schema["items"]) for one in value]
    return value


def faults(value: Any, schema: Schema, path: str = "") -> list[str]:
    """What is wrong with a value, in a server's words; nothing: it is as its schema says."""
    if value is None:
        return [] if schema.get("nullable") else [_type_fault(path, schema, "null")]
    if not _has_type(value, schema):
        return [_type_fault(path, schema, value)]
    found = _limits(value, schema, path)
    if isinstance(value, dict):
        found += _members(value, schema, path)
    elif isinstance(value, list):
        found += _items(value, schema, path)
    if not found:
        found += [
            f"{path or '<nil>'}: Invalid value: {rule.get('message', rule['rule'])}"
            for rule in schema.get("x-kubernetes-validations", ())
            if not RULES[rule["rule"]](value)
        ]
    return found


def _has_type(value: Any, schema: Schema) -> bool:
    if schema.get(_INT_OR_STRING):
        return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    match schema.get("type"):
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    return True


def _type_fault(path: str, schema: Schema, value: Any) -> str:
    kind = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}.get(
        type(value), "null" if value is None else "number"
    )
    shown = json.dumps(value if isinstance(value, str) else kind)
    wanted = schema.get("type")
    return f"{path}: Invalid value: {shown}: {path} in body must be of type {wanted}: {shown}"


def _limits(value: Any, schema: Schema, path: str) -> list[str]:
    said, body = f"{path}: Invalid value: {json.dumps(value)}: ", f"{path} in body should "
    found = []
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(json.dumps(one) for one in schema["enum"])
        found.append(f"{path}: Unsupported value: {json.dumps(value)}: supported values: {allowed}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            found.append(f"{said}{body}be greater than or equal to {schema['minimum']}")
        if value > schema.get("maximum", value):
            found.append(f"{said}{body}be less than or equal to {schema['maximum']}")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            found.append(f"{said}{body}be at least {schema['minLength']} chars long")
        if len(value) > schema.get("maxLength", len(value)):
            found.append(f"{path}: Too long: may not be longer than {schema['maxLength']}")
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append(f"{said}{body}match '{schema['pattern']}'")
        if schema.get("format") == "date-time" and not _is_time(value):
            found.append(f"{said}{path} in body must be of type date-time: {json.dumps(value)}")
    return found


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _members(value: dict[str, Any], schema: Schema, path: str) -> list[str]:
    found = [
        f"{_join(path, key)}: Required value"
        for key in schema.get("required", ())
        if key not in value
    ]
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key, one in value.items():
        part = properties.get(key, others if isinstance(others, Mapping) else None)
        if part is not None:
            found += faults(one, part, _join(path, key))
    return found


def _items(value: list[Any], schema: Schema, path: str) -> list[str]:
    found = []
    if len(value) > schema.get("maxItems", len(value)):
        found.append(
            f"{path}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
        )
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys:
        seen: set[tuple[Any, ...]] = set()
        for number, one in enumerate(value):
            known = tuple(one.get(key) for key in keys)
            if known in seen:
                found.append(f"{path}[{number}]: Duplicate value: {json.dumps(known)}")
            seen.add(known)
    for number, one in enumerate(value):
        found += faults(one, schema.get("items", {}), f"{path}[{number}]")
    return found


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
