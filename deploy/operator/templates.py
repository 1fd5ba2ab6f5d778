"""Merges pod templates of users into our manifests, and compares manifests with objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from ...coordinator.store.redis_url import holds_password
from ...mesh.kubernetes.resources import GROUP, Object, quantity
from ...runtime.errors import UsageError

#: User id and group id of our images.
_USER: Final = 65532
#: Security contexts of our pods and of their containers.
POD_SECURITY: Final[Object] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Object] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
#: Annotation with the hash of the manifest. The hash also changes if a field is only removed:
#: `covers` would not notice that.
HASH_ANNOTATION: Final = f"{GROUP}/made-from"
#: List of a pod spec -> key of its items by which two such lists are merged.
_KEYED: Final = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
#: Lists of a pod spec that are concatenated.
_APPENDED: Final = frozenset({"tolerations"})


def unreachable_tolerations(seconds: int) -> list[Object]:
    """Return tolerations that move a pod from an unreachable node after so many seconds."""
    return [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for condition in ("unreachable", "not-ready")
    ]


def merged(manifest: Any, template: Any, key: str = "") -> Any:
    """Merge a user's template into our manifest; the user's values win.

    Mappings are merged by key and containers by name. Items of other `_KEYED` lists are replaced
    if their key is the same; `_APPENDED` lists are concatenated. All other values are replaced.

    Raises:
        ValueError: the template has another value where a list is needed.
    """
    if isinstance(manifest, dict) and isinstance(template, dict):
        both = {**manifest, **template}
        return {
            name: merged(manifest[name], value, name)
            if name in manifest and name in template
            else value
            for name, value in both.items()
        }
    if isinstance(manifest, list) and isinstance(template, list):
        if key in _APPENDED:
            return [*manifest, *template]
        if key in _KEYED:
            return _merged_lists(manifest, template, key)
    if isinstance(manifest, list) and (key in _KEYED or key in _APPENDED):
        raise ValueError(f"{key}: expects a list")
    return template


def _merged_lists(manifest: list[Any], template: list[Any], key: str) -> list[Any]:
    name = _KEYED[key]
    items = {item[name]: item for item in manifest}
    for item in template:
        is_merged = key == "containers" and item[name] in items
        items[item[name]] = merged(items[item[name]], item) if is_merged else item
    return list(items.values())


def check_coordinator(container: Object) -> bool:
    """Return whether the container's environment has the Redis URL of the mesh.

    Raises:
        UsageError: the URL contains a password, which everyone who may read pods would see.
    """
    variables = [each for each in container.get("env") or () if each["name"] == "EDL_COORDINATOR"]
    if any(holds_password(str(each.get("value", ""))) for each in variables):
        raise UsageError(
            "the Redis URL of the mesh holds a password, which everyone who may read pods would"
            " see: mount a Secret by spec.podTemplate and name its file in the URL as"
            " ?password_file=FILE, or have the template take EDL_COORDINATOR from a Secret"
        )
    return bool(variables)


def escaped(word: str) -> str:
    """Escape `$(` in a word of a command, so that Kubernetes expands no variable in it."""
    return word.replace("$(", "$$(")


def with_hash(manifest: Object) -> Object:
    """Return the manifest with `HASH_ANNOTATION`, the hash of the given manifest."""
    text = json.dumps(manifest, sort_keys=True).encode()
    meta = manifest["metadata"]
    annotations = {
        **meta.get("annotations", {}),
        HASH_ANNOTATION: hashlib.sha256(text).hexdigest()[:16],
    }
    return {**manifest, "metadata": {**meta, "annotations": annotations}}


def manifest_hash(current: Object) -> str | None:
    """Return the hash that `with_hash` has put into an object; None: there is none."""
    value: str | None = (current["metadata"].get("annotations") or {}).get(HASH_ANNOTATION)
    return value


def covers(current: Any, wanted: Any, key: str = "") -> bool:
    """Return whether an object has all fields of a manifest; it may have more."""
    if wanted in ("", 0, False, {}) and current is None:  # servers omit empty values
        return True
    if isinstance(wanted, Mapping):
        return isinstance(current, Mapping) and all(
            covers(current.get(name), value, key if key in ("requests", "limits") else name)
            for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(current, list):
            return not wanted and current is None
        if key in _KEYED:
            return all(any(_is_same(has, item, _KEYED[key]) for has in current) for item in wanted)
        return len(current) == len(wanted) and all(map(covers, current, wanted))
    if key in ("requests", "limits") and current is not None:
        return _same_amount(current, wanted)
    return bool(current == wanted)


def _is_same(current: Any, wanted: Any, key: str) -> bool:
    """Return whether a list item has all fields of a wanted item, and the same value of `key`."""
    if not isinstance(current, Mapping) or not isinstance(wanted, Mapping):
        return bool(current == wanted)
    return bool(current.get(key) == wanted.get(key)) and covers(current, wanted)


def _same_amount(current: Any, wanted: Any) -> bool:
    try:
        return quantity(current) == quantity(wanted)
    except UsageError:
        return bool(current == wanted)
