"""The batches in the ring, and the requests that are sent for their rows."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeVar

import numpy as np

from ...proto.arena import Array, ArrayRef
from ...proto.channel import Message
from ...proto.clients import input_mismatch
from ...proto.datatypes import Input, StackedArray, pieces_of
from ...proto.shared_buffer import GENERATION_BYTES, BufferLocation, SharedBuffer
from ...runtime.errors import UsageError
from ...scheduler.ledger.events import Span
from ...scheduler.reader_core.instructions import SendRequest
from ...scheduler.reader_core.links import TeacherLinks
from ..config import FieldKey, ReaderConfig
from ..structure import row_count
from .teacher_link import TeacherLink
from .teacher_requests import TeacherRequest

log = logging.getLogger(__name__)

#: Maximum number of layouts to remember: padded texts have one for each length.
MAX_LAYOUTS: Final = 256


class BatchMetadata(NamedTuple):
    """A batch in the ring.

    Attributes:
        number: number of the batch; grows over all epochs.
        nbytes: bytes of all its arrays.
        samples: its rows, as the training loop counts them.
        fields: the location of each field in the ring.
        rows: number of rows that can be sent separately; 1 if the batch cannot be split.
        layout_id: number of its layout (fed fields, dtypes, shapes of a row). Rows of batches with
            the same number can be sent in one request.
        can_split: all fields to be fed have the same number of rows, at least one.
        generation: generation of the first field; it changes when the memory is reused.
        is_call: a call requests its labels, outside the training loop.
    """

    number: int
    nbytes: int
    samples: int
    fields: Mapping[FieldKey, ArrayRef]
    rows: int
    layout_id: int
    can_split: bool
    generation: int = 0
    is_call: bool = False

    def is_all_of(self, span: Span) -> bool:
        """Whether `span` has all rows of this batch."""
        return span.stop - span.start == self.rows


class KnownBatches(dict[int, BatchMetadata]):
    """The batches that were not taken or answered yet, by number. For the engine's thread."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self._fed = {key for _, key in config.feeds}
        splitting = config.store is not None or config.limits.request_rows is not None
        self._warns_of_unsplit = splitting and not config.feeds
        numbers = itertools.count()
        #: Returns the number of a layout; a layout that was evicted gets a new one.
        self._layout_id = lru_cache(MAX_LAYOUTS)(lambda layout: next(numbers))

    def add(self, message: Message) -> BatchMetadata:
        """Add the batch of a message of the trainer."""
        number, samples = message["number"], message["samples"]
        fields = {key: ArrayRef.from_json(ref) for key, ref in message["fields"]}
        fed = fields
        if self._fed:
            fed = {key: ref for key, ref in fields.items() if key in self._fed} or fields
        lengths = {ref.shape[0] if ref.shape else 0 for ref in fed.values()}
        can_split = len(lengths) == 1 and 0 not in lengths
        if can_split:
            layout = tuple((key, ref.dtype, ref.shape[1:]) for key, ref in fed.items())
            rows, layout_id = lengths.pop(), self._layout_id(layout)
        else:
            rows, layout_id = 1, -1 - number  # its own layout: the batch is sent whole, and alone
            if self._warns_of_unsplit:
                self._warns_of_unsplit = False
                log.warning(
                    "fields of a batch have different numbers of rows %s: such batches are sent"
                    " whole, and their labels are not stored; name the fields that the model gets"
                    " by feeds={'input': field}",
                    {key: ref.shape[0] if ref.shape else 0 for key, ref in fed.items()},
                )
        generation, is_call = message["generation"], message["kind"] == "call"
        batch = BatchMetadata(
            number,
            message["nbytes"],
            samples,
            fields,
            rows,
            layout_id,
            can_split,
            generation,
            is_call,
        )
        self[number] = batch
        return batch


T = TypeVar("T")
#: A hint in errors about fields.
_RAGGED: Final = " (a list of arrays cannot be fed: pad them to one array)"


def model_inputs(
    fields: Mapping[FieldKey, T],
    inputs: Sequence[str],
    feeds: Sequence[tuple[str | None, FieldKey]],
) -> dict[str, T]:
    """Choose a field of a batch for each input of a model.

    Args:
        fields: values by index or key.
        inputs: names of the model's inputs, in its order; empty: not published.
        feeds: the user's choice, as (input or None, field) pairs; empty: the fields with the names
            of the inputs, or the first fields if there are none with such a name.

    Raises:
        UsageError: a named field or input does not exist, there are too few fields or too many
            `feeds`, only some inputs have a field with their name, or `inputs` and `feeds` are both
            empty.
    """
    if not feeds:
        if not inputs:
            raise UsageError(
                "the model names no inputs; say which fields it gets by feeds={'input': field}"
            )
        feeds = _by_default(fields, inputs)
    chosen: dict[str, T] = {}
    for index, (name, key) in enumerate(feeds):
        if key not in fields:
            raise UsageError(f"feeds names field {key!r}, a batch has {list(fields)}{_RAGGED}")
        if name is None and index >= len(inputs):
            raise UsageError(
                f"feeds names {len(feeds)} fields, the model has the inputs {list(inputs)}"
            )
        if name is not None and inputs and name not in inputs:
            raise UsageError(f"feeds names input {name!r}, the model has {list(inputs)}")
        chosen[inputs[index] if name is None else name] = fields[key]
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
    unused = [key for key in fields if isinstance(key, str) and key not in inputs]
    # Not by order: a field could be fed to a wrong input.
    raise UsageError(
        f"the model's inputs {missing} have no field of their name in a batch with {list(fields)}"
        f"{_RAGGED}{_hint(missing, unused)}; say which by feeds={{'input': field}}"
    )


def _hint(missing: Sequence[str], unused: Sequence[str]) -> str:
    from difflib import get_close_matches  # slow to import, and only for errors

    close = {name: get_close_matches(name, unused, n=1, cutoff=0.4) for name in missing}
    pairs = [f"{matches[0]!r} for {name!r}" for name, matches in close.items() if matches]
    return f"; did you mean {', '.join(pairs)}?" if pairs else ""


#: First character of the names of dtypes that are converted before arrays are sent.
_BIG_ENDIAN: Final = ">"


class SlicedInputs(NamedTuple):
    """The inputs of one request.

    Attributes:
        inputs: views of the ring's memory, by name.
        locations: location of each input in the ring; empty unless teachers can read every input
            there in one piece.
        stamps: (offset, generation) of each array in the ring that has rows of the inputs.
    """

    inputs: dict[str, Input]
    locations: dict[str, BufferLocation]
    stamps: tuple[tuple[int, int], ...]


class InputSlicer:
    """Cuts the inputs of requests from batches in the ring. For the engine's thread.

    Args:
        batches: known batches by number.
        ring: holds the batches.
        feeds: see `model_inputs`.
    """

    def __init__(
        self,
        batches: Mapping[int, BatchMetadata],
        ring: SharedBuffer,
        feeds: Sequence[tuple[str | None, FieldKey]],
    ) -> None:
        self._batches = batches
        self._ring = ring
        self._feeds = feeds
        self._fed: dict[tuple[object, ...], Mapping[str, FieldKey]] = {}

    def cut(self, spans: Sequence[Span], inputs: tuple[str, ...]) -> SlicedInputs:
        """Cut the inputs of one request.

        Args:
            spans: the rows to be labelled, of batches with one layout.
            inputs: names of the model's inputs.

        Raises:
            UsageError: see `model_inputs`.
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
            name: StackedArray(tuple(arrays)) for name, arrays in pieces.items()
        }
        return SlicedInputs(stacked, {}, tuple(stamps))

    def _in_one_piece(self, span: Span, inputs: tuple[str, ...]) -> SlicedInputs:
        number, start, stop = span
        batch, ring = self._batches[number], self._ring
        whole = batch.is_all_of(span)
        sliced: dict[str, Input] = {}
        locations: dict[str, BufferLocation] = {}
        stamps = []
        fields = (inputs, *batch.fields)
        if (fed := self._fed.get(fields)) is None:  # the same for all batches with these fields
            fed = model_inputs({key: key for key in batch.fields}, inputs, self._feeds)
            self._fed[fields] = fed
        for name, key in fed.items():
            ref = batch.fields[key]
            array = ring.get(ref)
            offset = ref.offset
            if not whole:
                offset += start * array.nbytes // max(len(array), 1)
                array = array[start:stop]
            sliced[name] = array
            stamp = ring.generation(ref.offset)
            stamps.append((ref.offset, stamp))
            if array.nbytes and ref.dtype[0] != _BIG_ENDIAN and stamp:
                locations[name] = BufferLocation(offset, stamp, ref.offset - GENERATION_BYTES)
        if len(locations) < len(sliced):
            locations = {}
        return SlicedInputs(sliced, locations, tuple(stamps))


def own_copies(inputs: Mapping[str, Input]) -> dict[str, Input]:
    """Copy inputs, so that they do not change when the ring's memory is reused."""
    return {name: _own_copy(pieces_of(value)) for name, value in inputs.items()}


def _own_copy(pieces: tuple[Array, ...]) -> Array:
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0].copy()


class RequestSender:
    """Sends the requests of one member over its links. For the engine's thread.

    Args:
        config: settings of the member.
        batches: known batches by number.
        ring: holds the batches.
        links: open links by number.
        link_states: the core's view of the links.
    """

    def __init__(
        self,
        config: ReaderConfig,
        batches: KnownBatches,
        ring: SharedBuffer,
        links: Mapping[int, TeacherLink],
        link_states: TeacherLinks,
    ) -> None:
        self._config = config
        self._ring = ring
        self._slicer = InputSlicer(batches, ring, config.feeds)
        self._links = links
        self._link_states = link_states
        self._student = config.student_id
        self._checked: int | None = None  # number of the first batch that passed `_check`

    def send(self, instruction: SendRequest) -> None:
        """Send a request.

        Raises:
            UsageError: see `model_inputs`; or the inputs fit no teacher's model in dtype or shape.
                Dtypes and shapes are checked until one batch has passed.
        """
        config, link, send = self._config, self._links[instruction.link], instruction.send
        inputs, locations, stamps = self._slicer.cut(send.spans, link.inputs)
        if self._checked in (None, send.spans[0].batch):
            self._check(inputs)
            self._checked = send.spans[0].batch
        if instruction.in_own_memory:
            inputs, locations, stamps = own_copies(inputs), {}, ()
        request = TeacherRequest(
            send.request,
            send.spans,
            inputs,
            row_count(inputs.values()),
            f"{self._student}#{send.request}",
            time.monotonic(),
            locations,
            partial(self._ring.are_current, stamps),
        )
        level = logging.INFO if send.attempt > 1 else logging.DEBUG
        if log.isEnabledFor(level):
            rows, teacher = _shown(send.spans), send.teacher
            fields = {"service": config.service, **request.about(teacher)}
            log.log(level, "%s go to %s, attempt %d", rows, teacher, send.attempt, extra=fields)
        link.send(request)

    def _check(self, inputs: Mapping[str, Input]) -> None:
        """Raise UsageError if all teachers were probed and the inputs fit no described model.

        Models of foreign servers are not compared here.
        """
        models = [link.model.inputs for link in self._links.values() if not link.peer.foreign]
        mismatches = [input_mismatch(specs, inputs) for specs in models if specs]
        if mismatches and all(mismatches) and not self._link_states.unanswered:
            raise UsageError(f"{mismatches[0]}: convert it in the source, or name another field")


def _shown(spans: tuple[Span, ...]) -> str:
    return ", ".join(f"rows [{s.start}, {s.stop}) of batch {s.batch}" for s in spans)
