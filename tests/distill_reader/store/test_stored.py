"""Between answers of teachers and rows of a store: what goes in comes out as a teacher's answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.engine import label_cache_thread
from edl.distill_reader.engine.answers import ExpectedResponse, checked_labels
from edl.distill_reader.engine.inbox import Inbox
from edl.distill_reader.engine.label_cache_thread import (
    NO_LABELS,
    BatchKeys,
    CachedLabels,
    LabelCacheThread,
    LabelSelection,
    Lookup,
    RemoveRows,
    StoreRows,
    cached_labels,
    rows_of,
)
from edl.distill_reader.label_forms import NO_FORMS, LabelForms
from edl.distill_reader.store import LabelStore
from edl.distill_reader.store.rows import LabelRow, ModelId, ServiceModel, merged
from edl.distill_reader.store.store import LabelDatabase
from edl.proto.arena import Array
from edl.proto.clients import LabelResponse
from edl.proto.datatypes import Parameter
from edl.proto.forms import encode
from edl.runtime.errors import EdlError
from edl.tests.waiting import DEADLINE_S

CLASSES = 12
CONTENT = ModelId("c")
TEXTS = [None, "float32", "bfloat16", "float16", "topk:3", "topk:5"]
FORMS = st.builds(
    LabelForms.from_user, st.sampled_from(TEXTS), st.sampled_from([None, 1.0, 4.0]), st.booleans()
)
ALL = LabelSelection((), NO_FORMS)


def answer_of(numbers: list[int], forms: LabelForms) -> LabelResponse:
    """As a teacher of ours gives it: two outputs, of the samples of these numbers."""
    rng = [np.random.default_rng(number) for number in numbers]
    model = {
        "logits": np.stack([one.normal(0, 3, CLASSES) for one in rng]).astype(np.float32),
        "hidden": np.stack([one.normal(0, 1, (2, 7)) for one in rng]).astype(np.float32),
    }
    outputs: dict[str, Array] = {}
    said: dict[str, dict[str, Parameter]] = {}
    for name, array in model.items():
        form = forms.of(name)
        parts = {name: array} if form is None else encode(name, array, form)
        outputs |= parts
        if form is not None:
            said |= {part: form.parameters(array.shape[-1]) for part in parts}
    return LabelResponse(outputs, {}, said)


def expected_of(requested: LabelSelection) -> ExpectedResponse:
    whole = not requested.fetches
    return ExpectedResponse("", 0, "", requested.fetches, requested.forms, whole=whole)


def kept(numbers: list[int], requested: LabelSelection = ALL) -> list[LabelRow]:
    return rows_of(answer_of(numbers, requested.forms), expected_of(requested), CONTENT)


def same(found: CachedLabels, places: list[int], labels: dict[str, Array]) -> None:
    assert found.rows == tuple(places)
    assert list(found.labels) == list(labels)
    for name, array in labels.items():
        assert found.labels[name].dtype == array.dtype
        np.testing.assert_array_equal(found.labels[name], array)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=6), FORMS, st.data())
def test_the_loop_gets_from_a_store_what_it_got_from_the_teacher(
    numbers: list[int], forms: LabelForms, data: st.DataObject
) -> None:
    fetches = data.draw(st.sampled_from([(), ("hidden",), ("hidden", "logits")]))
    requested = LabelSelection(fetches, forms)
    labels = checked_labels(answer_of(numbers, forms), expected_of(requested), len(numbers))
    same(cached_labels(kept(numbers, requested), requested), list(range(len(numbers))), labels)
    same(cached_labels(kept(numbers), requested), list(range(len(numbers))), labels)


@given(st.lists(st.sampled_from(["whole", "poor", "both", "none"]), min_size=1, max_size=8))
def test_rows_of_many_kinds_stand_in_one_batch(kinds: list[str]) -> None:
    topk = LabelSelection((), LabelForms.from_user("topk:3", 4.0, True))
    rows: list[LabelRow | None] = []
    for number, kind in enumerate(kinds):
        (whole,), (poor,) = kept([number]), kept([number], topk)
        rows.append({"whole": whole, "poor": poor, "both": merged(poor, whole)}.get(kind))
    for requested, usable in ((topk, ("whole", "poor", "both")), (ALL, ("whole", "both"))):
        places = [place for place, kind in enumerate(kinds) if kind in usable]
        if not places:
            assert cached_labels(rows, requested) == NO_LABELS
            continue
        answer = answer_of(places, requested.forms)
        labels = checked_labels(answer, expected_of(requested), len(places))
        same(cached_labels(rows, requested), places, labels)


def test_all_outputs_come_only_of_rows_that_have_all() -> None:
    some = kept([1, 2], LabelSelection(("hidden",), NO_FORMS))
    assert cached_labels(some, ALL) == NO_LABELS
    assert list(cached_labels(some, LabelSelection(("hidden",), NO_FORMS)).labels) == ["hidden"]
    assert cached_labels(some, LabelSelection(("hidden", "logits"), NO_FORMS)) == NO_LABELS


def test_rows_of_another_shape_are_missing() -> None:
    long, short = (
        rows_of(
            LabelResponse({"y": np.ones(shape, np.float32)}),
            ExpectedResponse("", 0, "", ("y",), whole=True),
            CONTENT,
        )
        for shape in ((1, 9), (2, 4))
    )
    found = cached_labels([short[0], long[0], short[1]], ALL)
    assert found.rows == (0, 2)
    assert found.missing(3) == ((1, 2),)
    assert found.missing(5) == ((1, 2), (3, 5))
    no_row_has_it = LabelSelection(("y",), LabelForms.from_user("topk:12", None, True))
    assert cached_labels(short, no_row_has_it) == NO_LABELS


def test_values_of_two_sizes_stand_in_one_batch() -> None:
    forms = LabelForms.from_user("topk:2", None, False)
    requested = LabelSelection((), forms)
    rows = []
    for scale in (1.0, 1e6):
        form = forms.of("y")
        assert form is not None
        parts = encode("y", np.arange(5, dtype=np.float32)[None] * np.float32(scale), form)
        said = {part: form.parameters(5) for part in parts}
        expected = ExpectedResponse("", 0, "", ("y",), forms, whole=True)
        rows += rows_of(LabelResponse(parts, {}, said), expected, CONTENT)
    found = cached_labels(rows, requested)
    np.testing.assert_array_equal(found.labels["y.values"], [[4, 3], [4e6, 3e6]])


def test_what_a_foreign_server_gives_is_kept_in_the_form_that_was_asked_for() -> None:
    forms = LabelForms.from_user({"logits": "bfloat16"}, None, True)
    answer = LabelResponse({"odd_name": np.ones((2, 5), np.float32)})
    expected = ExpectedResponse("", 0, "", ("logits",), forms, foreign=True)
    (row, _) = rows_of(answer, expected, CONTENT)
    assert row.layout.outputs == ("logits",)
    assert len(row.data) == 5 * np.dtype(ml_dtypes.bfloat16).itemsize


LOOK = Lookup(7, 2, ModelId("c"), {"x": np.zeros((2, 3), np.float32)}, lambda: True)


class Listener:
    """What a thread of a store posts."""

    def __init__(self) -> None:
        self.opened = list[ServiceModel | None]()
        self.found = list[tuple[int, CachedLabels]]()

    def on_opened(self, remembered: ServiceModel | None) -> None:
        self.opened.append(remembered)

    def on_failed(self, error: EdlError) -> None:
        raise error

    def on_lookup(self, keys: BatchKeys, cached: CachedLabels) -> None:
        self.found.append((keys.number, cached))


class Worker:
    """A thread of a store, and the thread of the engine: the test's."""

    def __init__(self, folder: Path) -> None:
        self.listener = Listener()
        self._inbox = Inbox()
        settings = LabelStore(folder / "labels", 1 << 26)
        selection = LabelSelection((), NO_FORMS)
        self.thread = LabelCacheThread(settings, "s", selection, self._inbox, self.listener)

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            calls = self._inbox.next(DEADLINE_S)
            assert calls, "it says nothing"
            for call in calls:
                call()

    def close(self) -> None:
        self.thread.close()
        self._inbox.close()


@pytest.fixture
def start_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Worker]]:
    monkeypatch.setattr(label_cache_thread, "CLOSE_TIMEOUT_S", DEADLINE_S)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Worker(tmp_path)))


def fails(*_: object) -> None:
    raise TypeError("written by another version")


def rows_to_store(numbers: list[int]) -> StoreRows:
    expected = ExpectedResponse("", 0, "", ("logits", "hidden"), NO_FORMS, whole=True)
    rows = rows_of(answer_of(numbers, NO_FORMS), expected, CONTENT)
    return StoreRows(BatchKeys(7, CONTENT, [bytes([n]) * 16 for n in numbers]), rows)


@pytest.mark.parametrize("trouble", ["__init__", "recall", "get_many"])
def test_errors_are_misses(
    start_worker: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Also where a store cannot be opened, as without the module of SQLite."""
    monkeypatch.setattr(LabelDatabase, trouble, fails)
    worker = start_worker()
    worker.thread.submit(LOOK)
    worker.run_until(lambda: (7, NO_LABELS) in worker.listener.found)
    worker.thread.close()
    assert worker.listener.opened[0] is None
    assert trouble != "__init__" or len(worker.listener.opened) == 1
    assert "written by another version" in worker.thread.stats.trouble


def test_a_store_that_cannot_be_closed_is_not_waited_for(
    start_worker: Callable[[], Worker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(LabelDatabase, "close", fails)
    start_worker().thread.close()
    assert "written by another version" in caplog.text
    assert "is still being written" not in caplog.text


def test_rows_that_an_error_loses_are_counted(
    start_worker: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LabelDatabase, "put_many", fails)
    worker = start_worker()
    worker.thread.submit(rows_to_store([1, 2, 3]))
    worker.thread.submit(RemoveRows("t"))  # writes the rows before
    worker.thread.submit(rows_to_store([4, 5]))
    worker.thread.close()
    assert worker.thread.stats.dropped == 5


def test_rows_are_written_in_time_while_commands_arrive(
    start_worker: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, go_on = list[str](), threading.Event()
    monkeypatch.setattr(label_cache_thread, "WRITE_AFTER_S", 0.0)
    monkeypatch.setattr(LabelDatabase, "recall", lambda *_: go_on.wait(DEADLINE_S) and None)
    monkeypatch.setattr(LabelDatabase, "remember", lambda *_: done.append("remember"))
    monkeypatch.setattr(LabelDatabase, "put_many", lambda *_: done.append("put"))
    worker = start_worker()
    worker.thread.submit(rows_to_store([1]))
    worker.thread.submit(ServiceModel(CONTENT))
    go_on.set()
    worker.thread.close()
    assert done == ["put", "remember", "put"], "the second is empty: the end"
