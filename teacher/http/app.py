"""The addresses of the protocol under /v2, each a few lines over the servicer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import EdlError, RequestRefused, WireError
from ...proto.json_values import parse_object
from ..servicer import Dependencies
from .bodies import CLIENT_GONE, NotThere, decoder, encode, plain, read_body, to_http
from .middleware import entry_of, shown_by

#: Of a request that holds names only.
_NAMES_BYTES: Final = 64 << 10


class Api:
    """The protocol over HTTP; lives in one event loop.

    Args:
        given: what it works with.
    """

    def __init__(self, given: Dependencies) -> None:
        self._config, self._servicer, self._admission, self._recorder = given
        # Of its own, and one: small requests must not wait for large ones.
        self._json_reader = ThreadPoolExecutor(1, "json")

    def app(self) -> Starlette:
        """The application."""
        routes = [
            self._get("/v2", "ServerMetadata"),
            self._get("/v2/health/live", "ServerLive", lambda said: _whether(said.live)),
            self._get("/v2/health/ready", "ServerReady", lambda said: _whether(said.ready)),
            self._get("/v2/models/stats", "ModelStatistics"),
            _post("/v2/repository/index", self._index),
            _post("/v2/systemsharedmemory/region/{name}/register", self._register),
        ]
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes += [
                self._get(model, "ModelMetadata"),
                self._get(f"{model}/ready", "ModelReady", lambda said: _whether(said.ready)),
                self._get(f"{model}/stats", "ModelStatistics"),
                _post(f"{model}/infer", self._infer),
            ]
        for memory in ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{name}"):
            routes += [
                self._get(f"{memory}/status", "SystemSharedMemoryStatus", _regions),
                _post(f"{memory}/unregister", self._unregister),
            ]
        handlers: dict[Any, Any] = {
            EdlError: self._refuse,
            HTTPException: self._no_such,
            ClientDisconnect: _nobody,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    def close(self) -> None:
        """Wait for nobody."""
        self._json_reader.shutdown(wait=False)

    def malformed(self) -> None:
        """Somebody has sent what is no HTTP."""
        self._recorder.refused(WireError())

    def _get(
        self, path: str, name: str, answer: Callable[[Any], Response] = lambda said: _json(said)
    ) -> Route:
        """Of a method whose whole request stands in the path."""

        async def serve(request: Request) -> Response:
            return answer(self._ask(name, request))

        return Route(path, serve, methods=["GET"])

    def _ask(self, name: str, request: Request, **fields: Any) -> Any:
        """What a method answers to a request with these fields, if its caller may ask."""
        method = self._servicer.methods[name]
        of_model = "version" in method.request.DESCRIPTOR.fields_by_name
        if of_model:
            entry_of(request).model = request.path_params.get("name")
        caller = self._admission.admit(shown_by(request), method.right)
        try:
            return method.answer(method.request(**request.path_params, **fields), caller)
        except RequestRefused as error:
            if of_model:
                raise NotThere(str(error)) from None
            raise

    async def _index(self, request: Request) -> Response:
        ready = (await self._body("RepositoryIndex", request)).get("ready", False)
        index = self._ask("RepositoryIndex", request, ready=ready is True)
        return JSONResponse([plain(model) for model in index.models])

    async def _register(self, request: Request) -> Response:
        place = _place_in(await self._body("SystemSharedMemoryRegister", request))
        self._ask("SystemSharedMemoryRegister", request, **place)
        return Response()

    async def _unregister(self, request: Request) -> Response:
        self._ask("SystemSharedMemoryUnregister", request)
        return Response()

    async def _body(self, name: str, request: Request) -> dict[str, Any]:
        """The JSON object of a request for the method `name`; an empty body is an empty one."""
        right = self._servicer.methods[name].right
        caller = self._admission.admit(shown_by(request), right)
        with self._admission.named_calls.begin(caller.owner) as call:
            body = await read_body(request, call, _NAMES_BYTES, self._config.receive_s)
        return parse_object(body) if len(body) else {}

    async def _infer(self, request: Request) -> Response:
        """A batch in JSON, in bytes behind it or in shared memory; then its labels."""
        caller = self._admission.admit(shown_by(request), "student")
        with self._admission.infer_calls.begin(caller.owner) as call:
            most_bytes = self._config.max_message_bytes
            body = await read_body(request, call, most_bytes, self._config.receive_s)
            return await self._servicer.infer(
                decoder(request, body, self._json_reader),
                encode,
                caller,
                deadline_s=None,
                entry=entry_of(request),
                nbytes=len(body),
            )

    async def _refuse(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, EdlError)
        self._recorder.refused(error)
        status, headers, words = to_http(error)
        return JSONResponse({"error": words}, status, headers)

    async def _no_such(self, request: Request, error: Exception) -> Response:
        """Starlette's own refusals: of a path, or a method, that is not here."""
        assert isinstance(error, HTTPException)
        self.malformed()
        what = f"{request.method} {request.url.path:.80}"
        return JSONResponse({"error": f"{what}: {error.detail}"}, error.status_code, error.headers)


def _post(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, endpoint, methods=["POST"])


async def _nobody(_: Request, __: Exception) -> Response:
    """For a caller that has hung up: it is not sent, and logged."""
    return Response(status_code=CLIENT_GONE)


def _whether(yes: bool) -> Response:
    return Response(status_code=200 if yes else 503)


def _json(message: Message) -> Response:
    return JSONResponse(plain(message))


def _regions(status: Any) -> Response:
    return JSONResponse([plain(region) for region in status.regions.values()])


def _place_in(body: dict[str, Any]) -> dict[str, Any]:
    """Which memory a body says."""
    match body:
        case {"key": str(key), "byte_size": int(size)}:
            offset = body.get("offset", 0)
            if isinstance(offset, int) and max(offset, size) < 1 << 63 and min(offset, size) >= 0:
                return {"key": key, "offset": offset, "byte_size": size}
    raise WireError('say which memory: {"key": NAME, "offset": BYTES, "byte_size": BYTES}')
