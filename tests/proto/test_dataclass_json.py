"""Values of ours as plain JSON values, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from edl.proto.dataclass_json import from_plain, to_plain
from edl.runtime.errors import WireError


class Pair(NamedTuple):
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Whole:
    pairs: tuple[Pair, ...]
    kinds: tuple[tuple[str, Literal["a", "b"]], ...]
    parameters: Mapping[str, bool | int | float | str]
    path: Path | None
    inner: Whole | None
    seconds: float = 1.0
    names: frozenset[str] = frozenset("ab")


INNER = Whole((), (), {}, None, None, 2.5)
WHOLE = Whole((Pair("x", (1, 2)),), (("y", "a"),), {"b": True, "i": 1}, Path("/p"), INNER)


def test_there_and_back() -> None:
    told = json.loads(json.dumps(to_plain(WHOLE)))
    assert from_plain(Whole, told) == WHOLE
    assert from_plain(Whole, told).parameters["b"] is True
    assert from_plain(Whole, {**told, "of a later version": 1}) == WHOLE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pairs", [["x"]]),
        ("pairs", [["x", [True]]]),
        ("pairs", {}),
        ("kinds", [["y", "c"]]),
        ("kinds", [["y"]]),
        ("kinds", [["y", []]]),
        ("parameters", {"p": []}),
        ("path", 7),
        ("inner", []),
        ("seconds", "1"),
        ("seconds", 10**400),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    told = to_plain(WHOLE)
    with pytest.raises(WireError, match=f"^{name}: .* is not of type"):
        from_plain(Whole, {**told, name: value})
    del told[name]
    with pytest.raises(WireError, match=f"^{name}: it is missing$"):
        from_plain(Whole, told)


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(WireError, match="nested too deeply"):
        from_plain(Whole, {**to_plain(WHOLE), "pairs": nested})


def test_a_record_of_an_older_version_gets_the_defaults_of_newer_fields() -> None:
    older = to_plain(WHOLE)
    del older["seconds"], older["inner"]["names"]
    assert from_plain(Whole, older, defaults=True) == WHOLE
    del older["path"]
    with pytest.raises(WireError, match=r"^path: it is missing$"):
        from_plain(Whole, older, defaults=True)
