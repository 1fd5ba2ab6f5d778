"""Messages of the protocol as JSON has them."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """Every field of a message without maps; numbers are numbers, whatever their size.

    Optional numbers and texts that are not set are left out.
    """
    return {
        field.name: _value(getattr(message, field.name), field.is_repeated)
        for field in message.DESCRIPTOR.fields
        if not (field.message_type and field.message_type.GetOptions().map_entry)
        if field.message_type or not field.has_presence or message.HasField(field.name)
    }


def _value(value: Any, repeated: bool) -> Any:
    if repeated:
        return [_value(one, False) for one in value]
    return plain(value) if isinstance(value, Message) else value
