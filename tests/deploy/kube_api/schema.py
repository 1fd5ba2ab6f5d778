"""Structural schemas of CustomResourceDefinitions: defaulting, pruning and validation."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators

Schema = Mapping[str, Any]


def _name_matches(pattern: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda body: re.search(pattern, body["metadata"]["name"]) is not None


#: Our definitions' CEL rules by their text. One that is not here fails the test that uses it.
RULES: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "self.minReplicas <= self.maxReplicas": lambda s: s["minReplicas"] <= s["maxReplicas"],
    "self.minNodes <= self.maxNodes": lambda s: s["minNodes"] <= s["maxNodes"],
    "has(self.train) != has(self.command)": lambda s: ("train" in s) != ("command" in s),
    **{
        f"self.metadata.name.matches('{pattern}')": _name_matches(pattern)
        for pattern in ("^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$", "^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$")
    },
}


def defaulted(value: Any, schema: Schema) -> Any:
    """The value with the defaults of its schema; they replace nulls, too."""
    if isinstance(value, dict):
        found = dict(value)
        for key, part in schema.get("properties", {}).items():
            if found.get(key) is None and "default" in part:
                found[key] = copy.deepcopy(part["default"])
            if key in found:
                found[key] = defaulted(found[key], part)
        return found
    if isinstance(value, list) and "items" in schema:
        return [defaulted(one, schema["items"]) for one in value]
    return value


def pruned(value: Any, schema: Schema) -> Any:
    """The value without the fields that its schema does not have."""
    if isinstance(value, list) and "items" in schema:
        return [pruned(one, schema["items"]) for one in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    if others is None and "properties" not in schema:
        return {}
    parts = {key: properties.get(key, others) for key in value}
    return {key: pruned(value[key], part) for key, part in parts.items() if part is not None}


def faults(value: Any, schema: Schema) -> list[str]:
    """What is wrong with a value; the rules are evaluated only if nothing else is."""
    errors = list(_VALIDATOR(schema, format_checker=_FORMATS).iter_errors(value))
    errors = errors or list(_RULE_VALIDATOR(schema).iter_errors(value))
    return [f"{error.json_path[2:]}: Invalid value: {error.message}" for error in errors]


def _type(validator: Any, wanted: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if value is not None or not schema.get("nullable"):
        yield from Draft202012Validator.VALIDATORS["type"](validator, wanted, value, schema)


def _int_or_string(_: Any, __: Any, value: Any, ___: Schema) -> Iterator[ValidationError]:
    if isinstance(value, bool) or not isinstance(value, int | str):
        yield ValidationError(f"{value!r} is neither an integer nor a string")


def _map_keys(_: Any, keys: list[str], value: Any, __: Schema) -> Iterator[ValidationError]:
    found = [tuple(one.get(key) for key in keys) for one in value]
    if len(found) != len(set(found)):
        yield ValidationError(f"Duplicate value: {found}")


def _rules(_: Any, rules: list[Schema], value: Any, __: Schema) -> Iterator[ValidationError]:
    for rule in rules:
        if not RULES[rule["rule"]](value):
            yield ValidationError(rule["message"])


def _is_time(text: object) -> bool:
    return not isinstance(text, str) or datetime.fromisoformat(text).tzinfo is not None


_FORMATS = FormatChecker(())
_FORMATS.checks("date-time", raises=ValueError)(_is_time)
_VALIDATOR = validators.extend(
    Draft202012Validator,
    {
        "type": _type,
        "x-kubernetes-int-or-string": _int_or_string,
        "x-kubernetes-list-map-keys": _map_keys,
    },
)
_RULE_VALIDATOR = validators.extend(_VALIDATOR, {"x-kubernetes-validations": _rules})
