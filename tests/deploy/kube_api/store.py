"""What the emulated server keeps, and what it does to it: the rules, without HTTP."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from .kinds import Known, defined, fresh
from .merging import Path, applied, leaves, merged, without
from .schema import defaulted, faults, pruned

Object = dict[str, Any]
Key = tuple[str, str]


class Refusal(Exception):
    """An answer that is none of success: status, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log that watches read."""

    version: int
    known: Known
    type: str
    object: Object


class Store:
    """Objects of all kinds. Any number of threads may use it."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.known = {(one.kind.api_version, one.kind.plural): one for one in fresh()}
        self.changes: list[Change] = []
        self.logs: dict[Key, str] = {}
        self._objects: dict[str, dict[Key, Object]] = {}
        self._owners: dict[tuple[str, Key], dict[str, set[Path]]] = {}
        self._version = 1
        for name in ("default", "kube-system"):
            self.create(self._of("v1", "namespaces"), "", {"metadata": {"name": name}}, "test")

    @property
    def version(self) -> str:
        """The `resourceVersion` of all together."""
        return str(self._version)

    def _of(self, api_version: str, plural: str) -> Known:
        return self.known[api_version, plural]

    def _all(self, known: Known) -> dict[Key, Object]:
        return self._objects.setdefault(f"{known.group}/{known.kind.plural}", {})

    def taken(self, known: Known, namespace: str, take: Callable[[Object], bool]) -> list[Object]:
        """Copies of all that are taken."""
        with self.lock:
            return [
                _copy(one)
                for (space, _), one in sorted(self._all(known).items())
                if (not namespace or space == namespace) and take(one)
            ]

    def get(self, known: Known, namespace: str, name: str) -> Object:
        """A copy of one."""
        with self.lock:
            return _copy(self._found(known, namespace, name))

    def _found(self, known: Known, namespace: str, name: str) -> Object:
        found = self._all(known).get((namespace, name))
        if found is None:
            raise Refusal(404, "NotFound", f'{_what(known)} "{name}" not found')
        return found

    def create(self, known: Known, namespace: str, body: Object, manager: str) -> Object:
        """Make one."""
        with self.lock:
            found = _copy(body)
            meta = found.setdefault("metadata", {})
            if not meta.get("name"):
                if not meta.get("generateName"):
                    message = "name or generateName is required"
                    raise Refusal(422, "Invalid", f"{_what(known)} is invalid: {message}")
                meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
            key = (namespace, meta["name"])
            if namespace and ("", namespace) not in self._all(self._of("v1", "namespaces")):
                raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
            if meta.get("namespace", namespace) != namespace:
                message = "the namespace of the provided object does not match the request"
                raise Refusal(400, "BadRequest", message)
            if known.status:
                found.pop("status", None)
            if known.kind.plural == "pods":
                found["status"] = {"phase": "Pending"}
            meta.update(uid=str(uuid.uuid4()), creationTimestamp=_now(), generation=1)
            meta.update({"namespace": namespace} if namespace else {})
            meta.pop("resourceVersion", None)
            meta.pop("managedFields", None)
            found = self._checked(known, found)
            if key in self._all(known):  # said of what could be made alone
                message = f'{_what(known)} "{meta["name"]}" already exists'
                raise Refusal(409, "AlreadyExists", message)
            self._owners[known.kind.plural, key] = {manager: {path for path, _ in leaves(body)}}
            if known.kind.kind == "CustomResourceDefinition":
                self._install(found)
            return self._put(known, key, found, "ADDED")

    def change(
        self,
        known: Known,
        namespace: str,
        name: str,
        how: Callable[[Object], Object],
        manager: str,
        subresource: str = "",
    ) -> Object:
        """Put what `how` makes of an object in its place; subresource "status": that part alone."""
        with self.lock:
            before = self._found(known, namespace, name)
            wanted = how(_copy(before))
            version = wanted.get("metadata", {}).get("resourceVersion")
            if version not in (None, "", before["metadata"]["resourceVersion"]):
                message = (
                    f'Operation cannot be fulfilled on {_what(known)} "{name}": the object has been'
                    " modified; please apply your changes to the latest version and try again"
                )
                raise Refusal(409, "Conflict", message)
            after = self._checked(known, _allowed(known, before, wanted, subresource))
            self._take(known, (namespace, name), before, after, manager)
            return self._replace(known, (namespace, name), before, after)

    def apply(
        self, known: Known, namespace: str, body: Object, manager: str, force: bool
    ) -> tuple[Object, bool]:
        """Server-side apply; also whether it was made."""
        with self.lock:
            key = (namespace, body["metadata"]["name"])
            before = self._all(known).get(key)
            if before is None:
                return self.create(known, namespace, body, manager), True
            owners = self._owners[known.kind.plural, key]
            said = {path: value for path, value in leaves(body) if path[0] not in ("apiVersion",)}
            self._refuse_conflicts(known, before, said, owners, manager, force)
            after = _copy(before)
            former = owners.get(manager, set()) - set(said)
            # elements of lists before what is in them, by which they are found
            for path in sorted(former, key=lambda one: (not isinstance(one[-1], tuple), -len(one))):
                if not any(path in theirs for who, theirs in owners.items() if who != manager):
                    after = without(after, path)
            after = applied(after, body)
            after = self._checked(known, _allowed(known, before, after, ""))
            self._take(known, key, before, after, manager)
            owners[manager] = set(said)
            return self._replace(known, key, before, after), False

    def _refuse_conflicts(
        self,
        known: Known,
        before: Object,
        said: Mapping[Path, Any],
        owners: Mapping[str, set[Path]],
        manager: str,
        force: bool,
    ) -> None:
        there = dict(leaves(before))
        for path, value in said.items():
            for who, theirs in owners.items():
                if who != manager and path in theirs and there.get(path, value) != value:
                    if force:
                        continue
                    where = "".join(f".{step}" for step in path)
                    message = f'Apply failed with 1 conflict: conflict with "{who}": {where}'
                    raise Refusal(409, "Conflict", message)

    def _take(self, known: Known, key: Key, before: Object, after: Object, manager: str) -> None:
        """Fields whose values change are those of who has changed them."""
        was, now = dict(leaves(before)), dict(leaves(after))
        changed = {path for path in was.keys() | now.keys() if was.get(path) != now.get(path)}
        owners = self._owners[known.kind.plural, key]
        for theirs in owners.values():
            theirs -= changed
        owners.setdefault(manager, set()).update(changed & now.keys())

    def delete(self, known: Known, namespace: str, name: str, options: Object) -> Object:
        """Order one to go: at once, after its grace period, or when its finalizers have gone."""
        with self.lock:
            before = self._found(known, namespace, name)
            meta = before["metadata"]
            for key, wanted in options.get("preconditions", {}).items():
                if meta[key] != wanted:
                    message = f"Precondition failed: {key}: {wanted}, in object meta: {meta[key]}"
                    raise Refusal(409, "Conflict", message)
            grace_s = self._grace_s(known, before, options)
            if not grace_s and not meta.get("finalizers"):
                return self._remove(known, (namespace, name))
            after = _copy(before)
            due = datetime.now(UTC) + timedelta(seconds=grace_s)
            after["metadata"].setdefault("deletionTimestamp", due.strftime("%Y-%m-%dT%H:%M:%SZ"))
            after["metadata"]["deletionGracePeriodSeconds"] = grace_s
            return self._replace(known, (namespace, name), before, after)

    @staticmethod
    def _grace_s(known: Known, found: Object, options: Object) -> int:
        """Of a pod that has a machine and has not ended; what nobody runs goes at once."""
        if known.kind.plural != "pods" or not found["spec"].get("nodeName"):
            return 0
        if found.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        own = found["spec"].get("terminationGracePeriodSeconds", 30)
        return int(options.get("gracePeriodSeconds", own))

    def _checked(self, known: Known, found: Object) -> Object:
        if known.schema is None:
            return found
        found = {**pruned(found, known.schema), "metadata": found["metadata"]}
        found = defaulted(found, known.schema)
        if wrong := faults(found, known.schema):
            name = found["metadata"]["name"]
            shown = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
            message = f'{known.kind.kind}.{known.group} "{name}" is invalid: {shown}'
            raise Refusal(422, "Invalid", message)
        return found

    def _install(self, crd: Object) -> None:
        for one in defined(crd):
            self.known[one.kind.api_version, one.kind.plural] = one
        crd["status"] = {"conditions": [{"type": "Established", "status": "True"}]}

    def _replace(self, known: Known, key: Key, before: Object, after: Object) -> Object:
        if after == before:
            return _copy(before)
        kept = before["metadata"]
        if {k: v for k, v in after.items() if k not in ("metadata", "status")} != {
            k: v for k, v in before.items() if k not in ("metadata", "status")
        }:
            after["metadata"]["generation"] = kept.get("generation", 1) + 1
        meta = after["metadata"]
        going = meta.get("deletionTimestamp") and not meta.get("finalizers")
        if going and (kept.get("finalizers") or not meta.get("deletionGracePeriodSeconds")):
            self._all(known)[key] = after
            return self._remove(known, key)
        return self._put(known, key, after, "MODIFIED")

    def _put(self, known: Known, key: Key, found: Object, how: str) -> Object:
        self._version += 1
        found["apiVersion"], found["kind"] = known.kind.api_version, known.kind.kind
        found["metadata"]["resourceVersion"] = str(self._version)
        self._all(known)[key] = found
        return self._tell(known, how, found)

    def _remove(self, known: Known, key: Key) -> Object:
        self._version += 1
        found = self._all(known).pop(key)
        self._owners.pop((known.kind.plural, key), None)
        found["metadata"]["resourceVersion"] = str(self._version)
        return self._tell(known, "DELETED", found)

    def _tell(self, known: Known, how: str, found: Object) -> Object:
        self.changes.append(Change(self._version, known, how, _copy(found)))
        self.lock.notify_all()
        return _copy(found)

    def wait(self, seen: int, until: float) -> list[Change]:
        """Changes after the first `seen`; empty when there are none until a monotonic time."""
        with self.lock:
            while len(self.changes) <= seen and time.monotonic() < until:
                self.lock.wait(max(0.0, until - time.monotonic()))
            return self.changes[seen:]


def _allowed(known: Known, before: Object, wanted: Object, subresource: str) -> Object:
    """What of a change is taken at this path: the status alone, or all but it and identity."""
    name, uid = before["metadata"]["name"], before["metadata"]["uid"]
    if (said := wanted.get("metadata", {}).get("uid")) not in (None, "", uid):
        wrong = f'metadata.uid: Invalid value: "{said}": field is immutable'
        raise Refusal(422, "Invalid", f'{_what(known)} "{name}" is invalid: {wrong}')
    if subresource == "status":
        after = _copy(before)
        after["status"] = wanted.get("status", {})
        return after
    if known.status:
        wanted["status"] = before.get("status", {})
        if "status" not in before:
            del wanted["status"]
    fixed = ("uid", "name", "namespace", "creationTimestamp", "generation", "resourceVersion")
    for key in (*fixed, "deletionTimestamp", "deletionGracePeriodSeconds"):
        if key in before["metadata"]:
            wanted["metadata"][key] = before["metadata"][key]
        else:
            wanted["metadata"].pop(key, None)
    wanted["metadata"].pop("managedFields", None)
    return wanted


def merge(changes: Object) -> Callable[[Object], Object]:
    """A merge patch as what `Store.change` carries out."""
    return lambda found: dict(
        merged({**found, "metadata": _unversioned(found["metadata"])}, changes)
    )


def bound(node: str) -> Callable[[Object], Object]:
    """What a pod's binding to a machine does, as what `Store.change` carries out."""

    def bind(pod: Object) -> Object:
        if pod["spec"].get("nodeName"):
            raise Refusal(409, "Conflict", f"pod is already assigned to {pod['spec']['nodeName']}")
        pod["spec"]["nodeName"] = node
        return pod

    return bind


def _copy(value: Object) -> Object:
    """All of it is JSON, which is the fastest copy of itself."""
    return dict(json.loads(json.dumps(value)))


def _unversioned(meta: Object) -> Object:
    return {key: value for key, value in meta.items() if key != "resourceVersion"}


def _what(known: Known) -> str:
    return f"{known.kind.plural}.{known.group}" if known.group else known.kind.plural


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
