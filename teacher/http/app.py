"""The addresses of the protocol under /v2, each a few lines over the servicer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import EdlError, RequestRefused, WireError
from ...proto import inference_pb2 as pb
from ...proto.json_values import parse_object
from ..callers import Visitor
from ..calls import CallAdmission
from ..config import ServerConfig
from ..recorder import Recorder
from ..servicer import Servicer
from .bodies import CLIENT_GONE, NotThere, decoder, encode, plain, read_body, to_http
from .middleware import entry_of, shown_by

#: Of a request that holds names only.
_NAMES_BYTES: Final = 64 << 10

_T = TypeVar("_T")


class Api:
    """The protocol over HTTP; lives in one event loop.

    Args:
        config: the limits.
        servicer: what to answer.
        admission: who may ask, and how much at once.
        recorder: told of every refusal.
    """

    def __init__(
        self,
        config: ServerConfig,
        servicer: Servicer,
        admission: CallAdmission,
        recorder: Recorder,
    ) -> None:
        self._config = config
        self._servicer = servicer
        self._admission = admission
        self._recorder = recorder
        # Of its own, and one: small requests must not wait for large ones.
        self._json_reader = ThreadPoolExecutor(1, "json")

    def app(self) -> Starlette:
        """The application."""
        routes = [
            _get("/v2", self._server),
            _get("/v2/health/live", self._live),
            _get("/v2/health/ready", self._ready),
            _get("/v2/models/stats", self._statistics),
            _post("/v2/repository/index", self._index),
            _post("/v2/systemsharedmemory/region/{region}/register", self._register),
        ]
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                _get(model, self._model),
                _get(f"{model}/ready", self._model_ready),
                _get(f"{model}/stats", self._statistics),
                _post(f"{model}/infer", self._infer),
            ]
        for memory in ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{region}"):
            routes += [
                _get(f"{memory}/status", self._memory),
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

    # These two tell nothing but that a teacher is here, and load balancers have no token.
    async def _live(self, _: Request) -> Response:
        return _whether(self._servicer.server_live(pb.ServerLiveRequest()).live)

    async def _ready(self, _: Request) -> Response:
        return _whether(self._servicer.server_ready(pb.ServerReadyRequest()).ready)

    async def _server(self, request: Request) -> Response:
        self._admission.known(shown_by(request))
        return _as_json(self._servicer.server_metadata(pb.ServerMetadataRequest()))

    async def _model(self, request: Request) -> Response:
        self._admission.known(shown_by(request))
        asked = pb.ModelMetadataRequest(**_model_asked(request))
        return _as_json(_there(self._servicer.model_metadata, asked))

    async def _model_ready(self, request: Request) -> Response:
        self._admission.known(shown_by(request))
        asked = pb.ModelReadyRequest(**_model_asked(request))
        return _whether(_there(self._servicer.model_ready, asked).ready)

    async def _statistics(self, request: Request) -> Response:
        self._admission.known(shown_by(request))
        asked = pb.ModelStatisticsRequest(**_model_asked(request))
        return _as_json(_there(self._servicer.model_statistics, asked))

    async def _index(self, request: Request) -> Response:
        visitor = self._admission.known(shown_by(request))
        ready = (await self._body(request, visitor)).get("ready", False)
        index = self._servicer.repository_index(pb.RepositoryIndexRequest(ready=ready is True))
        return JSONResponse([plain(model) for model in index.models])

    async def _memory(self, request: Request) -> Response:
        visitor = self._admission.student(shown_by(request))
        asked = pb.SystemSharedMemoryStatusRequest(name=_region_of(request))
        status = self._servicer.shared_memory_status(asked, visitor)
        return JSONResponse([plain(region) for region in status.regions.values()])

    async def _register(self, request: Request) -> Response:
        visitor = self._admission.student(shown_by(request))
        asked = _registration(_region_of(request), await self._body(request, visitor))
        self._servicer.shared_memory_register(asked, visitor)
        return Response()

    async def _unregister(self, request: Request) -> Response:
        visitor = self._admission.student(shown_by(request))
        asked = pb.SystemSharedMemoryUnregisterRequest(name=_region_of(request))
        self._servicer.shared_memory_unregister(asked, visitor)
        return Response()

    async def _body(self, request: Request, visitor: Visitor) -> dict[str, Any]:
        """The JSON object of a request that holds names; an empty body is an empty one."""
        with self._admission.named_calls.begin(visitor.owner) as call:
            body = await read_body(request, call, _NAMES_BYTES, self._config.receive_s)
        return parse_object(body) if len(body) else {}

    async def _infer(self, request: Request) -> Response:
        """A batch in JSON, in bytes behind it or in shared memory; then its labels."""
        visitor = self._admission.student(shown_by(request))
        with self._admission.infer_calls.begin(visitor.owner) as call:
            most_bytes = self._config.max_message_bytes
            body = await read_body(request, call, most_bytes, self._config.receive_s)
            return await self._servicer.infer(
                decoder(request, body, self._json_reader),
                encode,
                visitor,
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


def _get(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, endpoint, methods=["GET"])


def _post(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, endpoint, methods=["POST"])


async def _nobody(_: Request, __: Exception) -> Response:
    """For a caller that has hung up: it is not sent, and logged."""
    return Response(status_code=CLIENT_GONE)


def _whether(yes: bool) -> Response:
    return Response(status_code=200 if yes else 503)


def _as_json(message: Message) -> Response:
    return JSONResponse(plain(message))


def _there(answer: Callable[[Any], _T], asked: Message) -> _T:
    """What `answer` says of the model that the path names; it may not be there."""
    try:
        return answer(asked)
    except RequestRefused as error:
        raise NotThere(str(error)) from None


def _model_asked(request: Request) -> dict[str, str]:
    """The model that the path names, of which the access log is told."""
    path = request.path_params
    name: str = path.get("model", "")
    if name:
        entry_of(request).model = name
    return {"name": name, "version": path.get("version", "")}


def _region_of(request: Request) -> str:
    return str(request.path_params.get("region", ""))


def _registration(region: str, body: dict[str, Any]) -> pb.SystemSharedMemoryRegisterRequest:
    match body:
        case {"key": str(key), "byte_size": int(size)}:
            offset = body.get("offset", 0)
            if isinstance(offset, int) and max(offset, size) < 1 << 63 and min(offset, size) >= 0:
                return pb.SystemSharedMemoryRegisterRequest(
                    name=region, key=key, offset=offset, byte_size=size
                )
    raise WireError('say which memory: {"key": NAME, "offset": BYTES, "byte_size": BYTES}')
