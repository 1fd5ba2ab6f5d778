"""The objects of the emulated API server, and what each kind of request does to them."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edl.mesh.kubernetes.resources import (
    API_VERSION,
    DEPLOYMENT,
    NODE,
    POD,
    SERVICE,
    Kind,
    Object,
    rfc3339_s,
)

from .kinds import CRD, JOB, KINDS
from .schema import defaulted, faults, pruned

Key = tuple[str, str, str, str]
Edit = Callable[[Object], Object]
Selected = Callable[[Object], bool]
#: Fields that identify the elements of a list, by the list's name; other lists are atomic.
_LIST_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("containers", "initContainers", "env", "volumes"), ("name",)),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ports": ("containerPort", "port", "protocol"),
}
_SERVER_OWNED = ("uid", "name", "namespace", "creationTimestamp", "generation", "resourceVersion",
                 "deletionTimestamp")  # fmt: skip


class Refusal(Exception):
    """An answer that is not a success: status, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def answer(self) -> tuple[int, bytes]:
        told = {"message": self.message, "reason": self.reason, "code": self.status}
        return self.status, json.dumps({"kind": "Status", "status": "Failure", **told}).encode()


@dataclass(frozen=True)
class Known:
    """A kind that the server serves; `scale` is its field of `spec` with the number of replicas."""

    kind: Kind
    status: bool = False
    scale: str = ""
    schema: Mapping[str, Any] | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.kind.api_version, self.kind.plural

    @property
    def title(self) -> str:
        return f"{self.kind.plural}.{self.kind.api_version.rpartition('/')[0]}".rstrip(".")


def _built_in() -> Iterator[Known]:
    with_status = (POD, SERVICE, NODE, JOB, CRD)
    for kind in KINDS:
        if kind == DEPLOYMENT:
            yield Known(kind, True, "replicas")
        elif kind.api_version != API_VERSION:
            yield Known(kind, kind in with_status)


def _defined(crd: Object) -> Iterator[Known]:
    spec = crd["spec"]
    for version in spec["versions"]:
        api_version, names = f"{spec['group']}/{version['name']}", spec["names"]
        subresources = version.get("subresources", {})
        scale = subresources.get("scale", {}).get("specReplicasPath", "")
        yield Known(
            Kind(api_version, names["kind"], names["plural"], spec["scope"] == "Namespaced"),
            "status" in subresources,
            scale.removeprefix(".spec."),
            version["schema"]["openAPIV3Schema"],
        )


@dataclass(frozen=True, slots=True)
class Change:
    """An event of a watch."""

    version: int
    known: Known
    type: str
    object: Object


class Store:
    """All objects, all that happened to them, and what pods have printed. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.known = {one.key: one for one in _built_in()}
        self.changes: list[Change] = []
        self.logs: dict[tuple[str, str], str] = {}
        self.version = 1
        self._objects: dict[Key, Object] = {}
        self._applied: dict[Key, Object] = {}
        self._namespaces = self.known["v1", "namespaces"]
        self.create(self._namespaces, "", {"metadata": {"name": "default"}})

    def select(self, known: Known, namespace: str, selected: Selected) -> list[Object]:
        """Copies of the selected objects, by name; of all namespaces if it is empty."""
        with self.lock:
            return [
                _copy(one)
                for (*key, space, _), one in sorted(self._objects.items(), key=lambda it: it[0])
                if (*key,) == known.key and namespace in ("", space) and selected(one)
            ]

    def get(self, known: Known, namespace: str, name: str) -> Object:
        with self.lock:
            if (found := self._objects.get((*known.key, namespace, name))) is None:
                raise Refusal(404, "NotFound", f'{known.title} "{name}" not found')
            return _copy(found)

    def create(self, known: Known, namespace: str, body: Object) -> Object:
        with self.lock:
            found = _copy(body)
            meta, name = found["metadata"], body["metadata"]["name"]
            if namespace:
                self.get(self._namespaces, "", namespace)
                meta["namespace"] = namespace
            if known.status:
                found.pop("status", None)
            if known.kind == POD:
                found["status"] = {"phase": "Pending"}
            now = rfc3339_s(time.time())
            meta.update(uid=str(uuid.uuid4()), creationTimestamp=now, generation=1)
            found = _validated(known, found)
            if (*known.key, namespace, name) in self._objects:
                raise Refusal(409, "AlreadyExists", f'{known.title} "{name}" already exists')
            if known.kind == CRD:
                self.known.update({one.key: one for one in _defined(found)})
            return self._record(known, found, "ADDED")

    def change(
        self, known: Known, namespace: str, name: str, edit: Edit, subresource: str = ""
    ) -> Object:
        """Replace an object by what `edit` makes of it; of that, only the part that may change."""
        with self.lock:
            before = self.get(known, namespace, name)
            wanted = edit(_copy(before))
            version = wanted["metadata"].get("resourceVersion", "")
            if version not in ("", before["metadata"]["resourceVersion"]):
                raise Refusal(
                    409, "Conflict",
                    f'Operation cannot be fulfilled on {known.title} "{name}": the object has been'
                    " modified; please apply your changes to the latest version and try again",
                )  # fmt: skip
            after = _validated(known, _permitted(known, before, wanted, subresource))
            if after == before:
                return before
            if _specified(after) != _specified(before):
                after["metadata"]["generation"] += 1
            return self._record(known, after, "MODIFIED")

    def apply(self, known: Known, namespace: str, body: Object) -> Object:
        """Server-side apply by one manager that owns all that it has ever applied."""
        with self.lock:
            name = body["metadata"]["name"]
            key = (*known.key, namespace, name)
            if key not in self._objects:
                found = self.create(known, namespace, body)
            else:
                former = self._applied.get(key, {})
                found = self.change(
                    known, namespace, name, lambda found: dict(_applied(found, former, body))
                )
            self._applied[key] = _copy(body)
            return found

    def delete(self, known: Known, namespace: str, name: str, options: Object) -> Object:
        """Remove an object; a pod that runs is only marked, unless it gets no time."""
        with self.lock:
            found = self.get(known, namespace, name)
            meta = found["metadata"]
            for key, wanted in options.get("preconditions", {}).items():
                if meta[key] != wanted:
                    message = f"Precondition failed: {key}: {wanted}, in object meta: {meta[key]}"
                    raise Refusal(409, "Conflict", message)
            ended = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
            runs = known.kind == POD and found["spec"].get("nodeName") and not ended
            if not runs or options.get("gracePeriodSeconds") == 0:
                del self._objects[*known.key, namespace, name]
                return self._record(known, found, "DELETED")
            meta.setdefault("deletionTimestamp", rfc3339_s(time.time()))
            return self._record(known, found, "MODIFIED")

    def _record(self, known: Known, found: Object, event: str) -> Object:
        self.version += 1
        meta = found["metadata"]
        found.update(apiVersion=known.kind.api_version, kind=known.kind.kind)
        meta["resourceVersion"] = str(self.version)
        if event != "DELETED":
            self._objects[*known.key, meta.get("namespace", ""), meta["name"]] = found
        self.changes.append(Change(self.version, known, event, _copy(found)))
        self.lock.notify_all()
        return _copy(found)

    def wait(self, seen: int, timeout_s: float) -> list[Change]:
        """Changes after the first `seen`; waits for one at most this long."""
        with self.lock:
            self.lock.wait_for(lambda: len(self.changes) > seen, timeout_s)
            return self.changes[seen:]


def _validated(known: Known, found: Object) -> Object:
    if known.schema is None:
        return found
    found = {**pruned(found, known.schema), "metadata": found["metadata"]}
    found = defaulted(found, known.schema)
    if wrong := faults(found, known.schema):
        name = found["metadata"]["name"]
        raise Refusal(422, "Invalid", f'{known.title} "{name}" is invalid: {", ".join(wrong)}')
    return found


def _permitted(known: Known, before: Object, wanted: Object, subresource: str) -> Object:
    """A change without what this path cannot change: all but the status, or the status."""
    if subresource == "status":
        return {**before, "status": wanted.get("status", {})}
    uid = wanted["metadata"].get("uid") or before["metadata"]["uid"]
    if uid != before["metadata"]["uid"]:
        message = f'metadata.uid: Invalid value: "{uid}": field is immutable'
        raise Refusal(422, "Invalid", message)
    kept = {key: one for key, one in before["metadata"].items() if key in _SERVER_OWNED}
    given = {key: one for key, one in wanted["metadata"].items() if key not in _SERVER_OWNED}
    found = {**wanted, "metadata": given | kept}
    if known.status:
        found.pop("status", None)
        found.update({"status": before["status"]} if "status" in before else {})
    return found


def _specified(found: Object) -> Object:
    return {key: one for key, one in found.items() if key not in ("metadata", "status")}


def merge(changes: Object) -> Edit:
    def edit(found: Object) -> Object:
        del found["metadata"]["resourceVersion"]
        return dict(merged(found, changes))

    return edit


def merged(value: Any, changes: Any) -> Any:
    """RFC 7386: null removes a field, objects are merged, everything else is replaced."""
    if not isinstance(changes, dict):
        return changes
    found = dict(value) if isinstance(value, dict) else {}
    for key, change in changes.items():
        if change is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), change)
    return found


def _applied(value: Any, former: Any, wanted: Any, name: str = "") -> Any:
    """A value with the fields of `wanted`, without those of `former` that `wanted` lacks."""
    if keys := _LIST_KEYS.get(name):
        elements: list[Any] = [
            {tuple(one.get(key) for key in keys): one for one in part or ()}
            for part in (value, former, wanted)
        ]
        return list(_applied(*elements).values())
    if not isinstance(value, dict) or not isinstance(wanted, dict):
        return wanted
    former = former if isinstance(former, dict) else {}
    found = dict(value)
    for key, one in wanted.items():
        found[key] = _applied(value.get(key), former.get(key), one, str(key))
    for key in (former.keys() - wanted.keys()) & found.keys():
        nothing: Any = {} if isinstance(former[key], dict) else None
        if rest := _applied(found[key], former[key], nothing, str(key)):
            found[key] = rest
        else:
            del found[key]
    return found


_TERM = re.compile(r"([\w./-]+)(?:(=|!=)([\w.:/-]*))?(?:,|$)")


def selecting(labels: str, fields: str = "") -> Selected:
    """Whether an object has these labels (`a=b` or `a`) and fields (`a=b` or `a!=b`)."""

    def selected(found: Object) -> bool:
        there = found["metadata"].get("labels", {})
        return all(
            key in there and value in ("", there[key]) for key, _, value in _TERM.findall(labels)
        ) and all(
            (_at(found, key) == value) == (sign == "=")
            for key, sign, value in _TERM.findall(fields)
        )

    return selected


def _at(found: Object, path: str) -> Any:
    """The value at a dotted path; None: there is none."""
    value: Any = found
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _copy(value: Object) -> Object:
    return dict(json.loads(json.dumps(value)))
