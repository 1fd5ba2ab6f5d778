"""The emulated API server: its paths over HTTP, with a thread for each connection."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import yaml

from edl.mesh.kubernetes.resources import POD, Object

from .store import Known, Refusal, Store, merge, selecting

TOKEN: Final = "emulated"
_PATH: Final = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|scale|log|binding))?"
)


class ApiServer:
    """An emulated API server on the loopback, while its context lasts.

    It notes method and path of each request; `refuses`, if there is one, is the answer to all.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.requests: list[tuple[str, str]] = []
        self.closing = False
        self.refuses: Refusal | None = None
        self.connections: list[socket.socket] = []
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="kube-api", daemon=True
        )

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing = True
        self._server.shutdown()
        self._thread.join()
        for one in self.connections:
            with suppress(OSError):  # the client closed it
                one.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    @contextmanager
    def refusing(self, refusal: Refusal) -> Iterator[None]:
        self.refuses = refusal
        try:
            yield
        finally:
            self.refuses = None

    def outage(self) -> Any:
        """Answer every request 503 while the returned context lasts."""
        return self.refusing(Refusal(503, "ServiceUnavailable", "currently unable to serve"))

    def kubeconfig(self) -> str:
        url, name = f"http://127.0.0.1:{self._server.server_port}", "emulated"
        context = {"cluster": name, "user": name, "namespace": "default"}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [{"name": name, "cluster": {"server": url}}],
                "users": [{"name": name, "user": {"token": TOKEN}}],
                "contexts": [{"name": name, "context": context}],
            }
        )

    def check(self, method: str, path: str, authorization: str | None) -> None:
        """Note a request, and raise Refusal if it is not to be answered."""
        self.requests.append((method, path))
        if self.refuses is not None:
            raise self.refuses
        if (authorization or "").lower() != f"bearer {TOKEN}":
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Object, media_type: str | None
    ) -> Object | None:
        """The body of the answer to a request; None: there is nothing at its path."""
        if discovered := self._discovery(path):
            return discovered
        if (found := self.find(path)) is None:
            return None
        (known, namespace, name, sub), store = found, self.store
        if method == "GET":
            if not name:
                return self._list(known, namespace, query)
            return store.get(known, namespace, name)
        if sub == "binding":
            return store.change(
                known, namespace, name, merge({"spec": {"nodeName": body["target"]["name"]}})
            )
        if method == "POST":
            return store.create(known, namespace, body)
        if method == "DELETE":
            return store.delete(known, namespace, name, body)
        if method == "PUT":
            return store.change(known, namespace, name, lambda _: body)
        if sub == "scale":
            edit = merge({"spec": {known.scale: body["spec"]["replicas"]}})
            return store.change(known, namespace, name, edit)
        if media_type == "application/apply-patch+yaml":
            return store.apply(known, namespace, body)
        return store.change(known, namespace, name, merge(body), sub)

    def find(self, path: str) -> tuple[Known, str, str, str] | None:
        """Kind, namespace, name and subresource of a path; None: there is nothing."""
        match = _PATH.fullmatch(path)
        known = match and self.store.known.get((match["core"] or match["group"], match["plural"]))
        sub = (match and match["sub"]) or ""
        if match is None or known is None or not _has(known, sub):
            return None
        namespace = (match["namespace"] or "") if known.kind.namespaced else ""
        return known, namespace, match["name"] or "", sub

    def _discovery(self, path: str) -> Object | None:
        """The documents by which kopf finds out what there is; None: it is another path."""
        served = [one.kind for one in self.store.known.values()]
        versions = sorted({one.api_version for one in served})
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            groups = [one.split("/") for one in versions if "/" in one]
            shown = {group: {"groupVersion": f"{group}/{v}", "version": v} for group, v in groups}
            named = [{"name": name, "versions": [one]} for name, one in shown.items()]
            return {"groups": [{**one, "preferredVersion": one["versions"][0]} for one in named]}
        version = path.removeprefix("/apis/").removeprefix("/api/")
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        here = [
            {"name": one.plural, "kind": one.kind, "namespaced": one.namespaced, "verbs": verbs}
            | {"singularName": one.kind.lower()}
            for one in served
            if one.api_version == version
        ]
        return {"groupVersion": version, "resources": here} if here else None

    def _list(self, known: Known, namespace: str, query: Mapping[str, str]) -> Object:
        selected = selecting(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        with self.store.lock:
            found = self.store.select(known, namespace, selected)
            meta = {"resourceVersion": str(self.store.version)}
        begin = int(query.get("continue", 0))
        end = begin + int(query.get("limit", len(found)))
        if end < len(found):
            meta["continue"] = str(end)
        for one in found:  # as the real one: items have neither
            del one["apiVersion"], one["kind"]
        return {"metadata": meta, "items": found[begin:end]}


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.api.connections.append(self.connection)

    def do_GET(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        parts = urlsplit(self.path)
        path, query = parts.path, dict(parse_qsl(parts.query))
        try:
            self.api.check(self.command, path, self.headers["Authorization"])
            if path.endswith("/log"):
                self._log(path, query)
            elif query.get("watch") == "true":
                self._watch(path, query)
            else:
                media_type = self.headers["Content-Type"]
                found = self.api.answer(self.command, path, query, body, media_type)
                if found is None:
                    self._send(404, b"404 page not found\n")
                else:
                    self._send(200, json.dumps(found).encode())
        except Refusal as refusal:
            self._send(*refusal.answer())

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _watch(self, path: str, query: Mapping[str, str]) -> None:
        if (found := self.api.find(path)) is None:
            raise Refusal(404, "NotFound", path)
        known, namespace = found[:2]
        since = int(query.get("resourceVersion", 0))
        selected = selecting(query.get("labelSelector", ""))
        self._begin("application/json")
        seen = 0
        while not self.api.closing and self.api.refuses is None:
            changes = self.api.store.wait(seen, 0.25)
            seen += len(changes)
            for one in changes:
                here = namespace in ("", one.object["metadata"].get("namespace"))
                new = one.known.key == known.key and one.version > since
                if new and here and selected(one.object):
                    self._chunk(json.dumps({"type": one.type, "object": one.object}) + "\n")
        self._chunk("")

    def _log(self, path: str, query: Mapping[str, str]) -> None:
        (namespace, name), store = path.split("/")[4:7:2], self.api.store
        store.get(store.known[POD.api_version, POD.plural], namespace, name)
        lines = store.logs[namespace, name].splitlines(keepends=True)
        self._begin("text/plain")
        if text := "".join(lines[-int(query.get("tailLines", len(lines) or 1)) :]):
            self._chunk(text)
        self._chunk("")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, text: str) -> None:
        """Send a part of a stream; the empty one ends it."""
        data = text.encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def _has(known: Known, sub: str) -> bool:
    if sub in ("log", "binding"):
        return known.kind == POD
    return {"status": known.status, "scale": bool(known.scale)}.get(sub, True)
