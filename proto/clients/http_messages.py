"""What passes over one line of HTTP: a request whose body lies in several places, and its reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from ...errors import BadAnswer, WireError
from ..json_objects import parse_object
from ..wire import MAX_MESSAGE_BYTES, Buffer

_WORDS: Final = 300
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-9][0-9][0-9])(?: [^\r\n]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)")
_LENGTH: Final = re.compile(rb"[0-9]{1,12}")
#: Statuses whose replies have no body, whatever their fields say.
_BODILESS: Final = (204, 304)


def _nothing() -> None:
    """Of a body that does not change."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is asked.

    Attributes:
        method: of HTTP.
        target: the path.
        headers: what stands in the head beside `Host` and `Content-Length`.
        body: what the body is made of, in order.
        check: called once all of it is sent; raises InputsOverwritten where it changed meanwhile.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[Buffer] = ()
    check: Callable[[], None] = _nothing

    def head(self, host: str) -> bytes:
        """All before the body, to be sent to `host`."""
        said = {"Host": host, "Accept-Encoding": "identity", **self.headers}
        if self.body or self.method == "POST":
            said["Content-Length"] = str(sum(map(len, self.body)))
        fields = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        return f"{self.method} {self.target} HTTP/1.1\r\n{fields}\r\n".encode("latin-1")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        status: the code.
        headers: by name in lower case.
        body: all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: memoryview

    def words(self) -> str:
        """What an error says of itself, in one line; the text of its JSON where it is JSON."""
        text = bytes(self.body[: 4 * _WORDS]).decode("utf-8", "replace")
        with suppress(WireError):
            said = parse_object(self.body)
            text = str(said.get("error", said.get("detail", text)))
        return " ".join(text.split())[:_WORDS] or f"HTTP status {self.status} and nothing else"


@dataclass(frozen=True, slots=True)
class PlainHead:
    """The head of a reply like nearly all: a body of so many bytes follows.

    Attributes:
        status: the code.
        headers: by name in lower case.
        nbytes: of the body.
        keeps: the server will take another request over this connection.
    """

    status: int
    headers: Mapping[str, str]
    nbytes: int
    keeps: bool

    @classmethod
    def read(cls, head: bytes) -> Self | None:
        """Of the bytes before the empty line; None: it is something else, be it no head at all.

        Raises:
            BadAnswer: the body would be larger than any message may be.
        """
        first, *lines = head.split(b"\r\n")
        status = _STATUS_LINE.fullmatch(first)
        fields = [_FIELD.fullmatch(line) for line in lines]
        if status is None or int(status[1]) in _BODILESS or None in fields:
            return None
        pairs = [(one[1].lower(), one[2].rstrip(b" \t")) for one in fields if one is not None]
        headers = dict(pairs)
        length = headers.get(b"content-length", b"")
        if (
            len(headers) < len(pairs)
            or b"transfer-encoding" in headers
            or not _LENGTH.fullmatch(length)
        ):
            return None
        check_size(int(length))
        connection = headers.get(b"connection", b"").lower()
        shown = {name.decode(): value.decode("latin-1") for name, value in headers.items()}
        return cls(int(status[1]), shown, int(length), b"close" not in connection)


def check_size(nbytes: int) -> None:
    """Raise BadAnswer for a body of more bytes than any message may have."""
    if nbytes > MAX_MESSAGE_BYTES:
        raise BadAnswer(f"the answer has {nbytes} bytes or more, which no message may")
