"""The head of a plain request for labels, known before its body is read.

Plain is what every client of the protocol sends: a POST of HTTP/1.1 whose head says how long its
body is. Whatever else there is (pieces, an expectation, escapes, what is malformed) goes the usual
way, so that this file need not know what HTTP makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import h11

#: What the head of such a request begins with, and what it ends with.
BEGINNING: Final = b"POST /v2/models/"
END: Final = b"\r\n\r\n"
#: Of a head.
MAX_BYTES: Final = 16 << 10

_PATH: Final = re.compile(rb"/v2/models/([\w.~-]+)(?:/versions/([\w.~-]+))?/infer", re.ASCII)
#: What changes how a body is to be read.
_NOT_PLAIN: Final = ("transfer-encoding", "content-encoding", "expect", "upgrade")


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a request.

    Attributes:
        path: of it.
        model: that it names.
        version: empty where none is named.
        headers: by name in lower case.
        nbytes: of the body.
        last: its sender wants the connection closed behind the answer.
    """

    path: str
    model: str
    version: str
    headers: Mapping[str, str]
    nbytes: int
    last: bool


def may_begin(data: bytes) -> bool:
    """Whether `data` is, or may become, the beginning of such a request."""
    return data.startswith(BEGINNING) or BEGINNING.startswith(data)


@lru_cache(maxsize=64)  # a client says the same again with each batch
def head_of(data: bytes) -> Head | None:
    """The head that `data` is, to its end; None: the request is not plain."""
    reader = h11.Connection(h11.SERVER, MAX_BYTES)
    try:
        reader.receive_data(data)
        request = reader.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(request, h11.Request):
        return None
    if (request.method, request.http_version) != (b"POST", b"1.1"):
        return None
    named = _PATH.fullmatch(request.target)
    headers: dict[str, str] = {}
    for name, value in request.headers:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    if named is None or "content-length" not in headers or any(n in headers for n in _NOT_PLAIN):
        return None
    return Head(
        request.target.decode("ascii"),
        named[1].decode("ascii"),
        (named[2] or b"").decode("ascii"),
        headers,
        int(headers["content-length"]),
        "close" in headers.get("connection", "").lower(),
    )
