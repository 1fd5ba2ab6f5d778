"""What is derived is what the teacher would have sent, and the richest is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.store.richness import covers, derived, merged
from edl.distill_reader.store.rows import Entry, Row, unpack
from edl.errors import RequestRefused
from edl.proto.form_arrays import encode
from edl.proto.forms import Form
from edl.tests.distill_reader.store.samples import inputs_of, logits_of, rows_in

TEXTS = ("float32", "bfloat16", "float16", "topk:5", "topk:20")
ALL: list[Form | None] = [None, *(Form.parse(text, t) for text in TEXTS for t in (None, 1.0, 4.0))]
FORMS = st.sampled_from(ALL)


def entry_in(form: Form | None) -> Entry:
    (row,) = rows_in(form, [0])
    return row.layout.entries[0]


ENTRIES = {form: entry_in(form) for form in ALL}


@given(FORMS, FORMS, FORMS)
def test_covering_is_a_partial_order(a: Form | None, b: Form | None, c: Form | None) -> None:
    assert covers(ENTRIES[a], a)
    if covers(ENTRIES[a], b) and covers(ENTRIES[b], c):
        assert covers(ENTRIES[a], c)
    if covers(ENTRIES[a], b) and covers(ENTRIES[b], a):
        assert a == b


@given(FORMS, FORMS, st.lists(st.integers(0, 1000), min_size=1, max_size=4))
def test_what_is_derived_is_what_the_teacher_would_have_sent(
    kept: Form | None, wanted: Form | None, numbers: list[int]
) -> None:
    if not covers(ENTRIES[kept], wanted):
        return
    rows = rows_in(kept, numbers)
    made = derived(rows[0].layout.entries[0], unpack(rows), wanted)
    logits = logits_of(inputs_of(numbers))
    sent = {"logits": logits} if wanted is None else encode("logits", logits, wanted)
    assert list(made) == list(sent)
    for name, array in sent.items():
        assert made[name].dtype == array.dtype
        np.testing.assert_array_equal(made[name], array)


def test_the_forms_that_the_richest_covers() -> None:
    assert all(covers(ENTRIES[None], form) for form in ALL)
    assert sum(covers(ENTRIES[Form.parse("float32")], form) for form in ALL) == len(ALL) - 1
    assert sum(covers(ENTRIES[Form.parse("float32", 4.0)], form) for form in ALL) == len(TEXTS)
    assert sum(covers(ENTRIES[Form.parse("topk:20")], form) for form in ALL) == 1


def test_integers_have_no_other_form() -> None:
    kept = Entry("y", None, None, (ENTRIES[None].pieces[0]._replace(datatype="INT64"),))
    assert [form for form in ALL if covers(kept, form)] == [None]


def test_a_form_that_nobody_can_make_is_refused() -> None:
    rows = rows_in(None, [1])
    with pytest.raises(RequestRefused, match="leaves none out"):
        derived(rows[0].layout.entries[0], unpack(rows), Form.parse("topk:50"))


def row_of(forms: Sequence[Form | None]) -> Row:
    (row,) = rows_in(forms[0], [3])
    for form in forms[1:]:
        (other,) = rows_in(form, [3])
        row = merged(row, other)
    return row


@given(st.lists(FORMS, min_size=1, max_size=4), st.lists(FORMS, min_size=1, max_size=4))
def test_merging_loses_nothing_and_keeps_nothing_twice(
    first: list[Form | None], second: list[Form | None]
) -> None:
    old, new = row_of(first), row_of(second)
    both = merged(old, new)
    assert len(both.data) == both.layout.nbytes
    entries = both.layout.entries
    for form in (*first, *second):
        assert any(covers(entry, form) for entry in entries)
    for place, entry in enumerate(entries):
        others = entries[:place] + entries[place + 1 :]
        assert not any(covers(other, entry.form) for other in others)
    assert merged(both, new) is both
    arrays = unpack([both])
    for entry in entries:
        some, arrays = arrays[: len(entry.pieces)], arrays[len(entry.pieces) :]
        (alone,) = rows_in(entry.form, [3])
        for kept, made in zip(some, unpack([alone]), strict=True):
            np.testing.assert_array_equal(kept, made)


def test_a_label_does_not_change_because_somebody_says_it_again() -> None:
    (old,) = rows_in(None, [3])
    (other,) = rows_in(None, [4])
    assert merged(old, other) is old


def test_outputs_stand_in_the_order_of_the_model_once_it_is_known() -> None:
    (first,) = rows_in(None, [3], output="b")
    partial = Row(first.layout.__class__(first.layout.content, first.layout.entries), first.data)
    (a,) = rows_in(None, [3], output="a")
    entries = (*a.layout.entries, *first.layout.entries)
    whole = Row(first.layout.__class__(a.layout.content, entries, (), True), a.data + first.data)
    both = merged(partial, whole)
    assert both.layout.outputs == ("a", "b")
    assert both.layout.whole
    assert both.data == whole.data
