"""Fields of a batch get their names, whatever the batch is; names that do not fit are said so."""

from __future__ import annotations

from typing import Any

import pytest

from edl.distill_reader.adapters.naming import by_name
from edl.errors import UsageError

FIELDS = {"x": 1, "label": 2, "soft": 3}


@pytest.mark.parametrize("batch", [FIELDS, [FIELDS]])
def test_of_a_mapping_those_are_kept_that_are_named(batch: Any) -> None:
    assert list(by_name(batch, ["soft", "x"]).items()) == [("soft", 3), ("x", 1)]
    assert by_name(batch, []) == FIELDS


def test_fields_in_their_order_are_given_the_names() -> None:
    assert by_name((1, 2, 3), list(FIELDS)) == by_name([1, 2, 3], list(FIELDS)) == FIELDS


@pytest.mark.parametrize(
    ("batch", "names", "words"),
    [
        (FIELDS, ["x", "y"], "names 'y', a batch has"),
        ((1, 2, 3), ["x", "label"], "2 fields, a batch has 3, soft labels included"),
        ([1], [], "name each of them"),
    ],
)
def test_what_does_not_fit_is_said(batch: Any, names: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        by_name(batch, names)
