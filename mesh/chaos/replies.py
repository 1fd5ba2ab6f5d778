"""The replies of a teacher over HTTP, cut from the bytes that come; the answers in them, spoilt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Self

from ...errors import WireError
from ...proto.clients.http_messages import PlainHead
from ...proto.json_asking import decode_response
from ...proto.json_tensors import BINARY_DEFAULT, BINARY_SIZE, HEAD_LENGTH, encode_response, split
from ...proto.tensors import InferRequest
from ...proto.tensors import decode_response as decode_message
from ...proto.tensors import encode_response as encode_message

_HEAD_ENDS = b"\r\n\r\n"
_BINARY = InferRequest("", parameters={BINARY_DEFAULT: True})


@dataclass(frozen=True, slots=True)
class WebReply:
    """One reply.

    Attributes:
        head: as it came, without the empty line behind it.
        body: the rest.
    """

    head: bytes
    body: bytes

    def encode(self) -> bytes:
        """As it goes over the wire."""
        return self.head + _HEAD_ENDS + self.body

    def answer(self) -> tuple[bytes, bytes] | None:
        """The JSON object and the labels of an answer with a batch's; None where it is none."""
        head = PlainHead.read(self.head)
        length = None if head is None else head.headers.get(HEAD_LENGTH.lower())
        if head is None or head.status != 200 or length is None:
            return None
        said, raw = split(memoryview(self.body), length)
        return bytes(said), bytes(raw)

    def with_answer(self, said: bytes, raw: bytes) -> Self:
        """The same reply with another answer."""
        lengths = {b"content-length": len(said) + len(raw), HEAD_LENGTH.lower().encode(): len(said)}
        lines = []
        for line in self.head.split(b"\r\n"):
            name = line.partition(b":")[0]
            length = lengths.get(name.lower())
            lines.append(line if length is None else b"%s: %d" % (name, length))
        return type(self)(b"\r\n".join(lines), said + raw)


class ReplyCutter:
    """Cuts what a server sends into replies, however it arrives."""

    def __init__(self) -> None:
        self._rest = b""
        self._lost = False  # where a reply begins

    def feed(self, data: bytes) -> list[WebReply | bytes]:
        """The replies that are whole now, in order; bytes from where one is no plain reply on."""
        self._rest += data
        found: list[WebReply | bytes] = []
        while not self._lost and _HEAD_ENDS in self._rest:
            head, _, body = self._rest.partition(_HEAD_ENDS)
            if (plain := PlainHead.read(head)) is None:
                self._lost = True
            elif len(body) < plain.nbytes:
                break
            else:
                found.append(WebReply(head, body[: plain.nbytes]))
                self._rest = body[plain.nbytes :]
        if self._lost:
            found.append(self._rest)
            self._rest = b""
        return found


def spoil_reply(reply: WebReply, spoil: Callable[[bytes], bytes | None]) -> WebReply | None:
    """A reply, its answer spoilt as `spoil` does one of gRPC's; None where it holds none."""
    if (answer := reply.answer()) is None:
        return None
    try:
        said = decode_response(memoryview(answer[0]), memoryview(answer[1]))
        message = encode_message(
            model_name="",
            outputs=said.outputs,
            parameters=said.parameters,
            output_parameters={
                name: {key: value for key, value in own.items() if key != BINARY_SIZE}
                for name, own in said.output_parameters.items()
            },
        )
        if (spoilt := spoil(message)) is None:
            return None
        head, raws = encode_response(_BINARY, decode_message(spoilt), ())
    except WireError:
        return None
    return reply.with_answer(head, b"".join(raws))


def flip(reply: WebReply, rng: Random) -> WebReply | None:
    """A reply with a bit flipped in the JSON object of its answer; None where it holds none."""
    if (answer := reply.answer()) is None:
        return None
    said = bytearray(answer[0])
    bit = rng.randrange(8 * len(said))
    said[bit // 8] ^= 1 << bit % 8
    return reply.with_answer(bytes(said), answer[1])
