"""Fields find their inputs by the user's word, by name, or in order; mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest

from edl.distill_reader.config import feed_pairs
from edl.distill_reader.engine.feeding import model_inputs
from edl.errors import UsageError


@pytest.mark.parametrize(
    ("fields", "inputs", "feeds", "expected"),
    [
        ({0: "image", 1: "label"}, ["x"], None, {"x": "image"}),
        ({0: "a", 1: "b"}, ["x", "y"], None, {"x": "a", "y": "b"}),
        ({0: "label", 1: "image"}, ["x"], [1], {"x": "image"}),
        ({"y": "Y", "x": "X", "label": "L"}, ["x", "y"], None, {"x": "X", "y": "Y"}),
        ({"image": "I", "label": "L"}, ["x"], None, {"x": "I"}),
        ({"label": "L", "image": "I"}, ["x"], ["image"], {"x": "I"}),
        ({"a": "A", "b": "B"}, ["x", "y"], {"y": "a", "x": "b"}, {"x": "B", "y": "A"}),
        ({0: "a", 1: "b"}, [], {"x": 1}, {"x": "b"}),
    ],
)
def test_fields_find_their_inputs(fields: Any, inputs: Any, feeds: Any, expected: Any) -> None:
    assert model_inputs(fields, inputs, feed_pairs(feeds)) == expected


@pytest.mark.parametrize(
    ("fields", "inputs", "feeds", "message"),
    [
        ({0: "a"}, ["x"], [3], "names field 3, a batch has \\[0\\]"),
        ({0: "a", 1: "b"}, ["x"], [0, 1], "names 2 fields"),
        ({0: "a"}, ["x"], {"z": 0}, "names input 'z', the model has \\['x'\\]"),
        ({0: "a"}, [], None, "names no inputs"),
        ({0: "a"}, ["x", "y"], None, "inputs \\['y'\\] get no field"),
    ],
)
def test_mistakes_are_named(fields: Any, inputs: Any, feeds: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model_inputs(fields, inputs, feed_pairs(feeds))


def test_a_bare_string_is_not_taken_for_a_list() -> None:
    with pytest.raises(UsageError, match=r"feeds=\['image'\]"):
        feed_pairs("image")
