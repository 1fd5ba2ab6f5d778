"""Fields of serialised protobuf messages, read and written without protobuf.

Protobuf's own parser copies every bytes field, and tensors are nearly all of a message. So this
module returns the fields of tensors as views, and protobuf parses only the rest of the message.

A field is a tag (field number * 8 + wire type, as a varint) and a value. The wire type tells how to
find the end of the value. Messages may be hostile: nothing is read beyond the end of a message, and
a message with too many fields is refused.
"""

from __future__ import annotations

from functools import lru_cache

from ..runtime.errors import WireError
from .datatypes import Buffer

#: Our messages have a handful of top-level fields. Without a bound, a message of two-byte fields
#: would cost a hundred times its size in objects.
MAX_FIELDS = 1 << 12


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_TAG_BYTES = 5
_MAX_VARINT_BYTES = 10


@lru_cache(maxsize=1024)
def bytes_field_header(field: int, nbytes: int) -> bytes:
    """Return the tag and length that precede the `nbytes` bytes of a bytes field."""
    return varint(field << 3 | _BYTES) + varint(nbytes)


def split_bytes_field(
    data: Buffer, field: int, max_fields: int = MAX_FIELDS
) -> tuple[bytes, list[memoryview]]:
    """Split a serialised message into one repeated bytes field and the rest.

    Args:
        data: the message.
        field: number of the bytes field.
        max_fields: maximum number of fields of the message.

    Returns:
        The message without that field, and the values of the field as read-only views into `data`,
        both in their order.

    Raises:
        WireError: the message is truncated, or has more than `max_fields` fields, a varint that is
            too long, or an unknown wire type (such as those of groups, which our messages lack).
    """
    view = memoryview(data).toreadonly().cast("B")
    wanted = field << 3 | _BYTES
    rest: list[memoryview] = []
    values: list[memoryview] = []
    rest_start = at = count = 0
    size = len(view)
    while at < size:
        start = at
        tag = view[at]
        begin = at + 2
        # The usual case: tag and length are one byte each.
        if (
            tag < 0x80
            and tag & 7 == _BYTES
            and begin <= size
            and (nbytes := view[at + 1]) < 0x80
            and begin + nbytes <= size
        ):
            at = begin + nbytes
        else:
            tag, at = read_varint(view, at, _MAX_TAG_BYTES)
            begin, at = _value(view, at, tag)
        if tag == wanted:
            values.append(view[begin:at])
            rest.append(view[rest_start:start])
            rest_start = at
        count += 1
        if count > max_fields:
            raise WireError(f"a message of more than {max_fields} fields is refused")
    rest.append(view[rest_start:])
    return b"".join(rest), values


def _value(view: memoryview, at: int, tag: int) -> tuple[int, int]:
    """Return start and end of the value of a field whose `tag` ends at `at`.

    Raises:
        WireError: the value is truncated, or its wire type is unknown.
    """
    kind = tag & 7
    if kind == _BYTES:
        nbytes, at = read_varint(view, at, _MAX_VARINT_BYTES)
        end = at + nbytes
    elif kind == _VARINT:
        _, end = read_varint(view, at, _MAX_VARINT_BYTES)
    elif kind == _FIXED32:
        end = at + 4
    elif kind == _FIXED64:
        end = at + 8
    else:
        raise WireError(f"field {tag >> 3} of the message has the unknown wire type {kind}")
    if end > len(view):
        raise WireError(
            f"truncated message: field {tag >> 3} ends at byte {end}, the message at {len(view)}"
        )
    return at, end


def read_varint(view: bytes | memoryview, at: int, max_bytes: int) -> tuple[int, int]:
    """Decode the varint at position `at`; return its value and the position behind it.

    Raises:
        WireError: the varint is truncated or longer than `max_bytes`.
    """
    value = 0
    for index, byte in enumerate(view[at : at + max_bytes]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    if len(view) - at < max_bytes:
        raise WireError(f"truncated message: it ends within a number at byte {at}")
    raise WireError(f"the number at byte {at} has more than {max_bytes} bytes")


def varint(value: int) -> bytes:
    """Encode a non-negative number as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
