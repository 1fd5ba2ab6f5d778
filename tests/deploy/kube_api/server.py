"""The emulated API server: its paths over HTTP, a thread for each connection."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

from .kinds import Known
from .paths import at, discovery, matcher
from .store import Object, Refusal, Store, bound, merge

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The token of its one user.
TOKEN: Final = "emulated"
_PATH: Final = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|scale|log|binding))?"
)
#: A watch ends after so long at the latest, seconds.
_WATCH_S: Final = 300.0


class ApiServer:
    """An emulated API server on the loopback, from entering it to leaving it.

    Attributes:
        store: what it keeps.
        requests: method and path of each request, in the order in which they came.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.requests: list[tuple[str, str]] = []
        self._stopping = threading.Event()
        self._failing = threading.Event()
        self._open: set[socket.socket] = set()
        server = self

        class Handler(_Handler):
            api = server

        class Server(ThreadingHTTPServer):
            daemon_threads = False

            def process_request(self, request: Any, client_address: Any) -> None:
                server._open.add(request)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                server._open.discard(request)
                super().shutdown_request(request)

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Who went away in the middle is no error of ours."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="kube-api", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def stopping(self) -> bool:
        """Whether watches are to end."""
        return self._stopping.is_set()

    @property
    def failing(self) -> bool:
        """Whether it answers 503 to all."""
        return self._failing.is_set()

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        with self.store.lock:
            self.store.lock.notify_all()
        self._server.shutdown()
        self._thread.join()
        for one in list(self._open):
            with suppress(OSError):  # it has gone by itself
                one.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """As long as this lasts, every request is answered 503."""
        self._failing.set()
        try:
            yield
        finally:
            self._failing.clear()

    def kubeconfig(self, namespace: str = "default") -> str:
        """A kubeconfig that leads here, as YAML."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "emulated",
                "clusters": [{"name": "emulated", "cluster": {"server": self.url}}],
                "users": [{"name": "emulated", "user": {"token": TOKEN}}],
                "contexts": [
                    {
                        "name": "emulated",
                        "context": {
                            "cluster": "emulated", "user": "emulated", "namespace": namespace,
                        },
                    }
                ],
            }
        )  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query))
        self.api.requests.append((self.command, parts.path))
        try:
            if self.api.failing:
                raise Refusal(503, "ServiceUnavailable", "the server is currently unable to serve")
            said = self.headers.get("Authorization")  # kubectl sends no token without TLS
            if said is not None and said.lower() != f"bearer {TOKEN}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            self._route(unquote(parts.path).rstrip("/"), body)
        except Refusal as refusal:
            self._answer(
                refusal.status,
                {
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": refusal.message, "reason": refusal.reason, "code": refusal.status,
                },
            )  # fmt: skip

    def _route(self, path: str, body: bytes) -> None:
        found = discovery(self.api.store, path)
        if found is not None:
            self._answer(200, found)
            return
        match = _PATH.fullmatch(path)
        known = None
        if match is not None:
            version = match["group"] or "v1"
            known = self.api.store.known.get((version, match["plural"]))
        if match is None or known is None:
            self._raw(404, b"404 page not found\n", "text/plain")
            return
        sub = match["sub"] or ""
        namespace, name = match["namespace"] or "", match["name"] or ""
        if not known.kind.namespaced:
            namespace = ""
        if sub == "log":
            self._log(namespace, name)
        elif self.command == "GET" and not name:
            self._collection(known, namespace)
        else:
            content = json.loads(body) if body else {}
            self._object(known, namespace, name, sub, content)

    def _object(self, known: Known, namespace: str, name: str, sub: str, body: Object) -> None:
        store, manager = self.api.store, self.query.get("fieldManager", "other")
        if sub == "status" and not known.status:
            self._raw(404, b"404 page not found\n", "text/plain")
        elif sub == "scale":
            self._scale(known, namespace, name, body)
        elif sub == "binding" or (self.command == "POST" and name):
            store.change(known, namespace, name, bound(body["target"]["name"]), manager)
            self._answer(201, {"kind": "Status", "status": "Success"})
        elif self.command == "POST":
            self._answer(201, store.create(known, namespace, body, manager))
        elif self.command == "GET":
            self._answer(200, store.get(known, namespace, name))
        elif self.command == "PUT":
            changed = store.change(known, namespace, name, lambda _: body, manager, sub)
            self._answer(200, changed)
        elif self.command == "DELETE":
            self._answer(200, store.delete(known, namespace, name, body))
        elif "apply" in self.headers["Content-Type"]:
            if not self.query.get("fieldManager"):
                raise Refusal(400, "BadRequest", "PatchOptions: fieldManager is required")
            force = self.query.get("force") == "true"
            done, new = store.apply(known, namespace, body, manager, force)
            self._answer(201 if new else 200, done)
        elif "merge-patch" in self.headers["Content-Type"]:
            changed = store.change(known, namespace, name, merge(body), manager, sub)
            self._answer(200, changed)
        else:
            raise Refusal(415, "UnsupportedMediaType", "the emulator takes merge and apply patches")

    def _scale(self, known: Known, namespace: str, name: str, body: Object) -> None:
        if known.scale is None:
            self._raw(404, b"404 page not found\n", "text/plain")
            return
        spec, status = (known.scale[one] for one in ("specReplicasPath", "statusReplicasPath"))
        found = self.api.store.get(known, namespace, name)
        if self.command in ("PUT", "PATCH"):
            change: Object = {spec.rpartition(".")[2]: body["spec"].get("replicas", 0)}
            found = self.api.store.change(known, namespace, name, merge({"spec": change}), "scale")
        shown = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {
                key: found["metadata"][key]
                for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            },
            "spec": {"replicas": at(found, spec) or 0},
            "status": {
                "replicas": at(found, status) or 0,
                "selector": at(found, known.scale.get("labelSelectorPath", ".none")) or "",
            },
        }
        self._answer(200, shown)

    def _collection(self, known: Known, namespace: str) -> None:
        take = matcher(self.query.get("labelSelector", ""), self.query.get("fieldSelector", ""))
        if self.query.get("watch") in ("true", "1"):
            self._watch(known, namespace, take)
            return
        with self.api.store.lock:
            found = self.api.store.taken(known, namespace, take)
            version = self.api.store.version
        begin = int(self.query.get("continue", 0))
        end = begin + int(self.query.get("limit") or len(found) or 1)
        meta = {"resourceVersion": version}
        meta.update({"continue": str(end)} if end < len(found) else {})
        for one in found:  # as a real one: items say neither
            one.pop("apiVersion", None)
            one.pop("kind", None)
        shown = {"apiVersion": known.kind.api_version, "kind": f"{known.kind.kind}List"}
        self._answer(200, {**shown, "metadata": meta, "items": found[begin:end]})

    def _watch(self, known: Known, namespace: str, take: Any) -> None:
        since = int(self.query.get("resourceVersion") or 0)
        until = time.monotonic() + float(self.query.get("timeoutSeconds", _WATCH_S))
        self._begin(200, "application/json")
        seen, store = 0, self.api.store
        while time.monotonic() < until and not self.api.stopping and not self.api.failing:
            changes = store.wait(seen, min(until, time.monotonic() + 0.25))
            seen += len(changes)
            for one in changes:
                meta = one.object["metadata"]
                here = not namespace or meta.get("namespace") == namespace
                if one.known == known and one.version > since and here and take(one.object):
                    self._chunk(json.dumps({"type": one.type, "object": one.object}) + "\n")
        self._end()

    def _log(self, namespace: str, name: str) -> None:
        """What a test has put into `store.logs`."""
        store = self.api.store
        pods = store.known["v1", "pods"]
        store.get(pods, namespace, name)
        if (namespace, name) not in store.logs:
            message = f'container "node" in pod "{name}" is waiting to start: ContainerCreating'
            raise Refusal(400, "BadRequest", message)
        lines = store.logs[namespace, name].splitlines(keepends=True)
        if "tailLines" in self.query:
            lines = lines[-int(self.query["tailLines"]) :]
        self._begin(200, "text/plain")
        self._chunk("".join(lines))
        self._end()

    def _answer(self, status: int, value: Object) -> None:
        self._raw(status, json.dumps(value).encode(), "application/json")

    def _raw(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, text: str) -> None:
        data = text.encode()
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
