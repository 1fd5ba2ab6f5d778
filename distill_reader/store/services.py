"""The model that was last at work for each service, as a store remembers it.

A run without teachers reads labels of that model. So each row bears a checksum, as labels do: a
model that is not the one that was put in would give labels of another.
"""

from __future__ import annotations

import json

from .database import Database
from .rows import Content, Model


def put_model(database: Database, service: str, model: Model) -> None:
    """This model is at work for `service`; within a transaction of the caller."""
    name, told = service.encode(), json.dumps([model.content, model.inputs]).encode()
    database.execute(
        "INSERT OR REPLACE INTO services VALUES (?, ?, ?)", (name, told, _sum_of(name, told))
    )


def model_of(database: Database, service: str) -> Model | None:
    """The one at work for `service`; None where nobody has said, or what was said is damaged."""
    return models_of(database, "WHERE service = ?", service.encode()).get(service)


def models_of(database: Database, which: str = "", *values: bytes) -> dict[str, Model]:
    """Those of all services by name, without what is damaged."""
    found: dict[str, Model] = {}
    rows = database.execute(f"SELECT service, told, sum FROM services {which}", values).fetchall()
    for name, told, checksum in rows:
        if isinstance(name, bytes) and isinstance(told, bytes) and checksum == _sum_of(name, told):
            content, inputs = json.loads(told)
            found[name.decode()] = Model(Content(*content), tuple(inputs))
    return found


def _sum_of(name: bytes, told: bytes) -> bytes:
    import xxhash

    return xxhash.xxh3_64(b"%d %s%s" % (len(name), name, told)).digest()
