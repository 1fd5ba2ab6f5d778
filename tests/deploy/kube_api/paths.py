"""Discovery documents of the emulated server, and its selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .kinds import Known
from .store import Object, Refusal, Store

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_TERM = re.compile(r"([\w./-]+)\s*(==|=|!=)\s*([\w.:/-]*)|(!?)([\w./-]+)")


def discovery(store: Store, path: str) -> Object | None:
    """What stands at a path that tells of the API itself; None: it is another path."""
    known = list(store.known.values())
    groups: dict[str, set[str]] = {}
    for one in known:
        if one.group:
            groups.setdefault(one.group, set()).add(one.kind.api_version.rpartition("/")[2])
    if path == "/version":
        return {"major": "1", "minor": "30", "gitVersion": "v1.30.0-emulated"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        listed = [_group(name, versions) for name, versions in sorted(groups.items())]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if path.removeprefix("/apis/") in groups:
        name = path.removeprefix("/apis/")
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, groups[name])}
    version = "v1" if path == "/api/v1" else path.removeprefix("/apis/")
    if any(one.kind.api_version == version for one in known):
        listed = [part for one in known if one.kind.api_version == version for part in _parts(one)]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": listed,
        }
    return None


def _group(name: str, versions: set[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{one}", "version": one} for one in sorted(versions)]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _parts(known: Known) -> list[Object]:
    kind = known.kind
    base: Object = {
        "name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced,
        "kind": kind.kind, "verbs": _VERBS, "shortNames": list(known.names),
    }  # fmt: skip
    found = [base]
    base = {**base, "shortNames": []}
    if known.status:
        found.append({**base, "name": f"{kind.plural}/status", "verbs": ["get", "patch", "update"]})
    if known.scale is not None:
        scale = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        found.append(
            {**base, **scale, "name": f"{kind.plural}/scale", "verbs": ["get", "patch", "update"]}
        )
    return found


def matcher(labels: str, fields: str) -> Callable[[Object], bool]:
    """Whether an object is taken by selectors, in the forms a=b, a!=b, a and !a."""
    terms = [(_term(one), False) for one in _split(labels)]
    terms += [(_term(one), True) for one in _split(fields)]

    def take(found: Object) -> bool:
        own: dict[str, Any] = found["metadata"].get("labels") or {}
        return all(
            ((_field(found, key) if is_field else own.get(key)) == value) is equal
            if value is not None
            else (key in own) is equal
            for (key, value, equal), is_field in terms
        )

    return take


def _split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _term(text: str) -> tuple[str, str | None, bool]:
    match = _TERM.fullmatch(text)
    if match is None:
        raise Refusal(400, "BadRequest", f"unable to parse requirement: {text}")
    if match[1]:
        return match[1], match[3], match[2] != "!="
    return match[5], None, not match[4]


def at(found: Object, path: str) -> Any:
    """The value at a dotted path; None: there is none."""
    value: Any = found
    for step in path.strip(".").split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _field(found: Object, path: str) -> str:
    value = at(found, path)
    return "" if value is None else str(value)
