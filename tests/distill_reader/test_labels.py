"""Labels of a batch are put together from whatever answers its rows came in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.batch_delivery import mean_layout, mixed_into
from edl.distill_reader.engine.label_records import LabelRecords
from edl.distill_reader.engine.requests import InputSlicer, KnownBatches
from edl.distill_reader.engine.teacher_requests import RequestDone, TeacherRequest
from edl.distill_reader.label_forms import NO_FORMS, LabelForms
from edl.distill_reader.structure import row_count
from edl.proto.arena import Arena, Array, Record
from edl.proto.datatypes import StackedArray, as_one_array
from edl.proto.forms import softmax
from edl.proto.shared_buffer import SharedBuffer
from edl.runtime.errors import BadAnswer, UsageError
from edl.scheduler.ledger.events import Span
from edl.tests.buffer_locations import located

WIDTH = 3


class World:
    """Batches in a ring, and the labels of their rows: a row's own number in every class."""

    def __init__(self, sizes: list[int], *, mixed: bool = False) -> None:
        self.ring, self.arena = SharedBuffer.create(), Arena.create()
        self.batches = KnownBatches(ReaderConfig("s", teachers=("a:1",)))
        self.labels = LabelRecords(self.arena, self.batches, mixed=mixed)
        self.inputs: dict[int, Array] = {}
        self.records: dict[int, Record] = {}
        for number, rows in enumerate(sizes):
            x = (np.arange(rows * WIDTH).reshape(rows, WIDTH) + 1000 * number).astype(np.float32)
            self.inputs[number] = x
            self.add(number, x)

    def add(self, number: int, *arrays: Array) -> None:
        record = self.records[number] = self.ring.put(arrays)
        fields = [[place, ref] for place, ref in enumerate(record.arrays)]
        about = {"number": number, "nbytes": 1, "samples": len(arrays[0]), "fields": fields}
        self.batches.add({"kind": "batch", "generation": 0, **about})

    def done(self, *spans: Span) -> RequestDone:
        rows = [self.inputs[s.batch][s.start : s.stop] for s in spans]
        x = np.concatenate(rows)
        return RequestDone(
            TeacherRequest(1, spans, {"x": x}, len(x)), {"soft": x, "sum": x.sum(1)}, 0, False, 0
        )

    def offer(self, number: int) -> dict[str, Array]:
        offered = self.labels.offer(number)
        assert offered is not None
        return self.labels.arrays(offered)

    def offer_too_early(self, number: int) -> None:
        """A batch is offered, and withdrawn: the trainer frees what it was offered for itself."""
        offered = self.labels.offer(number)
        self.labels.withdraw(number, whole=False)
        if offered is not None and not self.labels.is_mixed:
            self.arena.free(offered.record.offset)

    def close(self) -> None:
        self.ring.close()
        self.arena.close()


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World([4, 4])) as world:
        yield world


@given(st.data())
def test_rows_come_together_in_any_order_and_any_cut(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rows = [Span(number, row, row + 1) for number, size in enumerate(sizes) for row in range(size)]
    rows = data.draw(st.permutations(rows))
    with closing(World(sizes)) as world:
        while rows:
            count = data.draw(st.integers(1, len(rows)))
            asked, rows = rows[:count], rows[count:]
            done = world.done(*asked)
            world.labels.check(done)
            world.labels.write(done, set(asked))
        for number, x in world.inputs.items():
            found = world.offer(number)
            np.testing.assert_array_equal(found["soft"], x)
            np.testing.assert_array_equal(found["sum"], x.sum(1))


def told(world: World, span: Span, dtype: str) -> RequestDone:
    """Labels of rows that no narrower type holds."""
    done = world.done(span)
    soft = (done.labels["soft"] + 1 / 3).astype(dtype)
    return done._replace(labels={"soft": soft})


PRECISIONS = st.sampled_from(["float16", "bfloat16", "float32", "float64"])


@given(
    st.lists(st.lists(PRECISIONS, min_size=1, max_size=4), min_size=1, max_size=4),
    st.booleans(),
    st.data(),
)
def test_rows_of_mixed_precision_keep_their_values_and_no_batch_is_narrower(
    batches: list[list[str]], mixed: bool, data: st.DataObject
) -> None:
    """Whichever answer comes first, and though some are offered too early and withdrawn."""
    dtypes = {
        Span(number, row, row + 1): dtype
        for number, rows in enumerate(batches)
        for row, dtype in enumerate(rows)
    }
    with closing(World([*map(len, batches)], mixed=mixed)) as world:
        for span in data.draw(st.permutations([*dtypes])):
            done = told(world, span, dtypes[span])
            world.labels.check(done)
            world.labels.write(done, {span})
            if data.draw(st.booleans()):
                world.offer_too_early(span.batch)
        offered = [world.offer(number)["soft"] for number in range(len(batches))]
        widest = max(np.dtype(name).itemsize for name in dtypes.values())
        both = {"float16", "bfloat16"} <= set(dtypes.values())
        assert {soft.dtype.itemsize for soft in offered} == {max(widest, 4) if both else widest}
        for span, dtype in dtypes.items():
            given = told(world, span, dtype).labels["soft"]
            kept = offered[span.batch][span.start : span.stop]
            np.testing.assert_array_equal(kept, given.astype(np.float64))
        world.labels.reset()
        assert (world.arena.used_bytes == 0) == mixed, "else the trainer frees it"


def test_what_is_here_is_no_class_id_because_another_batch_is(world: World) -> None:
    for batch, dtype in ((0, "float32"), (1, "int64")):
        span = Span(batch, 0, 4)
        world.labels.write(told(world, span, dtype), {span})
    assert world.offer(0)["soft"].dtype == np.float32


def test_class_ids_do_not_stand_beside_probabilities(world: World) -> None:
    world.labels.write(told(world, Span(0, 0, 2), "float32"), {Span(0, 0, 2)})
    with pytest.raises(BadAnswer, match="int64"):
        world.labels.check(told(world, Span(0, 2, 4), "int64"))


def test_only_what_is_wanted_is_written(world: World) -> None:
    spans = (Span(0, 0, 4), Span(1, 0, 4))
    world.labels.write(world.done(*spans), {spans[1]})
    assert world.labels.offer(0) is None
    assert world.labels.nbytes > 0
    world.labels.clear()
    assert world.arena.used_bytes == 0


def test_labels_of_another_shape_than_the_other_rows_have_are_refused(world: World) -> None:
    world.labels.write(world.done(Span(0, 0, 2)), {Span(0, 0, 2)})
    odd = world.done(Span(0, 2, 4))
    odd = RequestDone(
        odd.request, {"soft": odd.labels["soft"][:, :2], "sum": odd.labels["sum"]}, 0, False, 0
    )
    with pytest.raises(BadAnswer, match="those of other rows"):
        world.labels.check(odd)
    world.labels.check(world.done(Span(0, 0, 4)))  # it takes the place of what was there


def test_a_request_is_views_of_the_ring(world: World) -> None:
    both = (Span(0, 2, 4), Span(1, 0, 1))
    slicer = InputSlicer(world.batches, world.ring, ())
    inputs, locations, stamps = slicer.cut(both, ("x",))
    assert isinstance(inputs["x"], StackedArray)
    assert row_count(inputs.values()) == 3
    expected = np.concatenate([world.inputs[0][2:4], world.inputs[1][:1]])
    np.testing.assert_array_equal(as_one_array(inputs["x"]), expected)
    assert not locations, "it is in two pieces"
    one = slicer.cut((Span(0, 1, 3),), ("x",)).inputs["x"]
    assert not isinstance(one, StackedArray)
    assert one.base is not None, "nothing was copied"
    assert world.ring.are_current(stamps)
    world.ring.free(world.records[1].offset)
    assert not world.ring.are_current(stamps), "the second one is over"


@pytest.mark.parametrize("span", [Span(0, 0, 4), Span(0, 1, 3), Span(1, 3, 4)])
def test_where_a_piece_lies_is_said_as_the_ring_says_it(world: World, span: Span) -> None:
    inputs, locations, _ = InputSlicer(world.batches, world.ring, ()).cut((span,), ("x",))
    x = inputs["x"]
    assert isinstance(x, np.ndarray)
    assert locations == {"x": located(world.ring, x)}


def test_what_is_not_read_as_it_lies_is_not_lent(world: World) -> None:
    world.add(2, np.zeros((4, WIDTH), ">f4"))
    world.add(3, np.zeros((4, WIDTH), np.float32), np.zeros((4, 0)))
    slicer = InputSlicer(world.batches, world.ring, ())
    assert not slicer.cut((Span(2, 0, 4),), ("x",)).locations
    assert not slicer.cut((Span(3, 0, 4),), ("x", "empty")).locations
    world.ring.free(world.records[0].offset)
    assert not slicer.cut((Span(0, 0, 4),), ("x",)).locations, "its memory may be another's soon"


def test_batches_of_unlike_fields_have_unlike_layouts(world: World) -> None:
    world.add(2, np.zeros((4, WIDTH), np.float64))
    world.add(3, np.zeros((4, WIDTH), np.float32), np.zeros(5))
    world.add(4, np.zeros((4, WIDTH), np.float32), np.zeros(5))
    layout_ids = [world.batches[number].layout_id for number in range(5)]
    assert layout_ids[0] == layout_ids[1]
    assert len(set(layout_ids)) == 4
    assert [world.batches[number].rows for number in (0, 2, 3)] == [4, 4, 1]


LOGITS = np.array([[0.0, 3.6], [5.0, -1.0]], np.float32)
GIVEN = softmax(LOGITS, 1.0)
LOGARITHMS = np.log(GIVEN)
STATED = LabelForms.from_user("topk:1", None, True, "probabilities")


@pytest.mark.parametrize(
    ("shares", "forms", "kinds", "mean"),
    [
        # What is averaged are the probabilities that follow from logits.
        (
            [(0.5, LOGITS), (0.5, LOGITS)],
            LabelForms.from_user(None, None, True, "logits"),
            (),
            GIVEN,
        ),
        # The teachers have applied the temperature.
        ([(0.25, GIVEN), (0.75, GIVEN)], LabelForms.from_user(None, 2.0, True), (), GIVEN),
        # Of one service come logits, of the other what its softmax made of the same.
        ([(0.5, GIVEN), (0.5, LOGITS)], NO_FORMS, ("", "logits"), GIVEN),
        ([(0.5, GIVEN), (0.5, LOGITS)], NO_FORMS, ("probabilities", "logits"), GIVEN),
        ([(0.5, LOGARITHMS), (0.5, LOGITS)], NO_FORMS, ("log-probabilities",), GIVEN),
        # Top-k of probabilities comes as logarithms, whatever is stated of the model.
        ([(1.0, LOGARITHMS)], STATED, ("probabilities",), GIVEN),
    ],
)
def test_the_mean_is_of_probabilities(
    shares: list[tuple[float, Array]], forms: LabelForms, kinds: tuple[str, ...], mean: Array
) -> None:
    """Each service has a name of its own for its output."""
    mixed = [np.ones((2, 2), np.float32)]
    pairs = [(share, {str(at): label}) for at, (share, label) in enumerate(shares)]
    padded = [*kinds, *[""] * len(shares)][: len(shares)]
    mixed_into(mixed, pairs, forms, [{str(at): kind} for at, kind in enumerate(padded)])
    np.testing.assert_allclose(mixed[0], mean, rtol=1e-5)


def test_sigmoid_outputs_are_not_averaged() -> None:
    mixed = [np.ones((1, 2), np.float32)]
    with pytest.raises(UsageError, match="output 'y' cannot be averaged"):
        mixed_into(mixed, [(1.0, {"y": GIVEN[:1]})], NO_FORMS, [{"y": "other"}])


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_outputs_of_less_than_two_classes_are_averaged_only_as_probabilities(
    shape: tuple[int, ...],
) -> None:
    """A softmax over one class is 1, and over the rows of a batch it is nothing."""
    label, mixed = np.full(shape, 0.25, np.float32), [np.empty(shape, np.float32)]
    for kind in ("", "logits"):
        with pytest.raises(UsageError, match="fewer than two classes"):
            mixed_into(mixed, [(1.0, {"y": label})], NO_FORMS, [{"y": kind}])
    stated = LabelForms.from_user(None, None, True, "probabilities")
    mixed_into(mixed, [(1.0, {"y": label})], stated, [{}])
    np.testing.assert_array_equal(mixed[0], label)


def test_labels_that_do_not_go_together_are_told_apart() -> None:
    ten, five = np.zeros((2, 10), np.float32), np.zeros((2, 5), np.float32)
    assert mean_layout({"a": {"y": ten}, "b": {"z": ten}})[0][0] == "y"
    with pytest.raises(UsageError, match="cannot be averaged"):
        mean_layout({"a": {"y": ten}, "b": {"y": five}})
    with pytest.raises(UsageError, match="no floats"):
        mean_layout({"a": {"y": ten.astype(np.int64)}})
    with pytest.raises(UsageError, match="no floats"):
        mean_layout({"a": {"y": ten}, "b": {"y": ten.astype(np.int64)}})
