"""The batches in the ring, and requests: how their inputs are cut from batches, and sent."""

from __future__ import annotations

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np

from ...errors import UsageError
from ...proto.arena import Array, ArrayRef
from ...proto.channel import Message
from ...proto.clients import input_mismatch
from ...proto.datatypes import Input, StackedArray, pieces_of
from ...proto.shared_buffer import GENERATION_BYTES, BufferLocation, SharedBuffer
from ...scheduler.ledger.events import Span
from ...scheduler.reader_core.instructions import SendRequest
from ...scheduler.reader_core.links import TeacherLinks
from ..config import FieldKey, ReaderConfig
from ..structure import row_count
from .outcomes import TeacherRequest
from .teacher_link import TeacherLink

log = logging.getLogger(__name__)

#: Names, dtypes, and shapes of one row, of what is fed.
Layout = tuple[tuple[FieldKey, str, tuple[int, ...]], ...]

#: Layouts that are remembered: padded texts have a new one with each length.
MAX_LAYOUTS: Final = 256


class Batch(NamedTuple):
    """A batch in the ring.

    Attributes:
        number: grows over all epochs.
        nbytes: of all its arrays.
        samples: rows, as the training loop counts them.
        fields: where the arrays lie that could be fed to a model.
        rows: that may go to teachers apart from each other; 1 where it cannot be cut.
        kind: rows of batches of one kind may go to a teacher together.
        is_even: whether it can be cut: each array that may be fed has all the rows.
        generation: of the first field: while it is the same, the memory is this batch's.
    """

    number: int
    nbytes: int
    samples: int
    fields: Mapping[FieldKey, ArrayRef]
    rows: int
    kind: int
    is_even: bool
    generation: int = 0

    def is_all_of(self, span: Span) -> bool:
        """Whether a span of this batch leaves nothing of it out."""
        return span.stop - span.start == self.rows


class Batches(dict[int, Batch]):
    """The batches that are not delivered for good, by number. Used by the engine's thread alone."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self._fed = {key for _, key in config.feeds}
        self._kinds: OrderedDict[Layout, int] = OrderedDict()  # of the latest layouts
        self._numbers = itertools.count()

    def add(self, message: Message) -> Batch:
        """The batch that the trainer's side tells of."""
        number, samples = message["number"], message["samples"]
        fields = {key: ArrayRef.from_json(ref) for key, ref in message["fields"]}
        fed = fields
        if self._fed:
            fed = {key: ref for key, ref in fields.items() if key in self._fed} or fields
        lengths: set[int] = set()
        layout = []
        for key, ref in fed.items():
            lengths.add(ref.shape[0] if ref.shape else 0)
            layout.append((key, ref.dtype, ref.shape[1:]))
        is_even = len(lengths) == 1 and 0 not in lengths
        if is_even:
            rows, kind = lengths.pop(), self._kind(tuple(layout))
        else:
            rows, kind = 1, -1 - number  # its own: it goes as it is, and alone
        generation = message.get("generation", 0)
        batch = Batch(number, message["nbytes"], samples, fields, rows, kind, is_even, generation)
        self[number] = batch
        return batch

    def _kind(self, layout: Layout) -> int:
        """The number of a layout; one that was not seen for long may get another one."""
        if layout not in self._kinds:
            self._kinds[layout] = next(self._numbers)
            if len(self._kinds) > MAX_LAYOUTS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(layout)
        return self._kinds[layout]


T = TypeVar("T")
#: Why a field that the user sees may not be among those that can be fed.
_RAGGED: Final = " (a list of arrays cannot be fed: pad them to one array)"


def model_inputs(
    fields: Mapping[FieldKey, T],
    inputs: Sequence[str],
    feeds: Sequence[tuple[str | None, FieldKey]],
) -> dict[str, T]:
    """A value for each of the model's inputs.

    Args:
        fields: the arrays of a batch by place or key.
        inputs: names of the model's inputs, in its order; empty where a server names none.
        feeds: what the user chose, as pairs (input or None, field); empty: by name, or in order
            if no field has the name of an input.

    Raises:
        UsageError: a field or an input that is named does not exist, there are too few, or only
            some inputs have a field of their name.
    """
    if not feeds:
        if not inputs:
            raise UsageError(
                "the model names no inputs; say which fields it gets by feeds={'input': field}"
            )
        feeds = _by_default(fields, inputs)
    chosen: dict[str, T] = {}
    for place, (name, key) in enumerate(feeds):
        if key not in fields:
            raise UsageError(f"feeds names field {key!r}, a batch has {list(fields)}{_RAGGED}")
        if name is None and place >= len(inputs):
            raise UsageError(
                f"feeds names {len(feeds)} fields, the model has the inputs {list(inputs)}"
            )
        if name is not None and inputs and name not in inputs:
            raise UsageError(f"feeds names input {name!r}, the model has {list(inputs)}")
        chosen[inputs[place] if name is None else name] = fields[key]
    missing = [name for name in inputs if name not in chosen]
    if missing:
        raise UsageError(
            f"the model's inputs {missing} get no field of the batch, which has {list(fields)}"
            f"{_RAGGED}; say which by feeds={{'input': field}}"
        )
    return chosen


def _by_default(
    fields: Mapping[FieldKey, T], inputs: Sequence[str]
) -> list[tuple[str | None, FieldKey]]:
    missing = [name for name in inputs if name not in fields]
    if not missing:
        return [(name, name) for name in inputs]
    if len(missing) == len(inputs):
        return list(zip(inputs, fields, strict=False))
    left = [key for key in fields if isinstance(key, str) and key not in inputs]
    # In order, a field could go to another input than the one it was made for.
    raise UsageError(
        f"the model's inputs {missing} have no field of their name in a batch with {list(fields)}"
        f"{_RAGGED}{_hint(missing, left)}; say which by feeds={{'input': field}}"
    )


def _hint(missing: Sequence[str], left: Sequence[str]) -> str:
    from difflib import get_close_matches  # takes a while to import, and is for errors alone

    close = {name: get_close_matches(name, left, n=1, cutoff=0.4) for name in missing}
    pairs = [f"{found[0]!r} for {name!r}" for name, found in close.items() if found]
    return f"; did you mean {', '.join(pairs)}?" if pairs else ""


#: How the names of dtypes begin whose arrays do not travel, nor are read, as they lie.
_BIG_ENDIAN: Final = ">"


class SlicedInputs(NamedTuple):
    """The inputs of one request.

    Attributes:
        inputs: by the inputs of its model: views of the ring's memory, no copy.
        locations: where they lie, if each lies in one piece that may be read there; else empty.
        stamps: of the arrays that they are views of: where each lies, and its generation.
    """

    inputs: dict[str, Input]
    locations: dict[str, BufferLocation]
    stamps: tuple[tuple[int, int], ...]


class InputSlicer:
    """Builds requests from rows of batches. Used by the engine's thread alone.

    Args:
        batches: all that may be named, by number.
        ring: where they lie.
        feeds: which field goes to which input; see `model_inputs`.
    """

    def __init__(
        self,
        batches: Mapping[int, Batch],
        ring: SharedBuffer,
        feeds: Sequence[tuple[str | None, FieldKey]],
    ) -> None:
        self._batches = batches
        self._ring = ring
        self._feeds = feeds
        self._fed: dict[tuple[object, ...], Mapping[str, FieldKey]] = {}

    def cut(self, spans: Sequence[Span], inputs: tuple[str, ...]) -> SlicedInputs:
        """The inputs of one request.

        Args:
            spans: the rows that are to be labelled, of batches of one kind.
            inputs: names of the model's inputs.

        Raises:
            UsageError: what the model takes is not in the batch.
        """
        if len(spans) == 1:
            return self._in_one_piece(spans[0], inputs)
        pieces: dict[str, list[Array]] = {}
        stamps: list[tuple[int, int]] = []
        for span in spans:
            piece = self._in_one_piece(span, inputs)
            stamps += piece.stamps
            for name, value in piece.inputs.items():
                pieces.setdefault(name, []).extend(pieces_of(value))
        stacked: dict[str, Input] = {
            name: StackedArray(tuple(each)) for name, each in pieces.items()
        }
        return SlicedInputs(stacked, {}, tuple(stamps))

    def _in_one_piece(self, span: Span, inputs: tuple[str, ...]) -> SlicedInputs:
        number, start, stop = span
        batch, ring = self._batches[number], self._ring
        whole = batch.is_all_of(span)
        found: dict[str, Input] = {}
        locations: dict[str, BufferLocation] = {}
        stamps = []
        for name, key in self._fed_with(batch, inputs).items():
            ref = batch.fields[key]
            array = ring.get(ref)
            offset = ref.offset
            if not whole:
                offset += start * array.nbytes // max(len(array), 1)
                array = array[start:stop]
            found[name] = array
            stamp = ring.generation(ref.offset)
            stamps.append((ref.offset, stamp))
            if array.nbytes and ref.dtype[0] != _BIG_ENDIAN and stamp:
                locations[name] = BufferLocation(offset, stamp, ref.offset - GENERATION_BYTES)
        return SlicedInputs(found, locations if len(locations) == len(found) else {}, tuple(stamps))

    def _fed_with(self, batch: Batch, inputs: tuple[str, ...]) -> Mapping[str, FieldKey]:
        """By which field each input is fed, of batches that have these."""
        kind = (inputs, *batch.fields)
        if (fed := self._fed.get(kind)) is None:
            fields = {key: key for key in batch.fields}
            fed = self._fed[kind] = model_inputs(fields, inputs, self._feeds)
        return fed


def own_copies(inputs: Mapping[str, Input]) -> dict[str, Input]:
    """The same in memory of their own, which nobody writes over."""
    return {name: _own(pieces_of(value)) for name, value in inputs.items()}


def _own(pieces: tuple[Array, ...]) -> Array:
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0].copy()


class RequestSender:
    """Sends the requests of one member over its links. Used by the engine's thread alone.

    Args:
        config: of the member.
        batches: that rows are of.
        ring: where they lie.
        links: that are open, by number.
        standing: their state in the core.

    """

    def __init__(
        self,
        config: ReaderConfig,
        batches: Batches,
        ring: SharedBuffer,
        links: Mapping[int, TeacherLink],
        standing: TeacherLinks,
    ) -> None:
        self._config = config
        self._ring = ring
        self._slicer = InputSlicer(batches, ring, config.feeds)
        self._links = links
        self._standing = standing
        self._student = config.student_id
        self._first: int | None = None  # the batch that shows whether the settings are right

    def send(self, ask: SendRequest) -> None:
        """Send a request.

        Raises:
            UsageError: what the model takes is not in the batch, or it is the first batch and of
                another dtype or shape than every teacher says that its model takes.
        """
        config, link, send = self._config, self._links[ask.link], ask.send
        inputs, locations, stamps = self._slicer.cut(send.spans, link.inputs)
        if self._first is None:
            self._first = send.spans[0].batch
        if send.spans[0].batch == self._first:
            self._check(inputs)
        if ask.in_own_memory:
            inputs, locations, stamps = own_copies(inputs), {}, ()
        now, samples = time.monotonic(), row_count(inputs.values())
        job = TeacherRequest(
            send.request,
            send.spans,
            inputs,
            config.fetches,
            samples,
            config.labels,
            now,
            locations,
            partial(self._ring.are_current, stamps),
            self._student,
        )
        level = logging.INFO if send.attempt > 1 else logging.DEBUG
        if log.isEnabledFor(level):
            words, shown = "%s go to %s, attempt %d", _shown(send.spans)
            about = {"service": config.service, **job.about(send.teacher)}
            log.log(level, words, shown, send.teacher, send.attempt, extra=about)
        link.send(job)

    def _check(self, inputs: Mapping[str, Input]) -> None:
        """Raise UsageError where no model is one for what the settings make of a batch."""
        models = [link.found.inputs for link in self._links.values() if not link.peer.foreign]
        differences = [input_mismatch(known, inputs) for known in models if known]
        if differences and all(differences) and not self._standing.unanswered:
            raise UsageError(f"{differences[0]}: convert it in the source, or name another field")


def _shown(spans: tuple[Span, ...]) -> str:
    return ", ".join(f"rows {s.start} to {s.stop} of batch {s.batch}" for s in spans)
