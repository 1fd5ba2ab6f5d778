"""`DistilReader`: the loader that a training loop iterates; the face, with the work behind it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..errors import UsageError
from ..proto.forms import SoftLabelIs
from ..scheduler.students.shards import Uneven
from .checking import of_kind, path, texts, whole
from .config import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_JOB,
    DEFAULT_PROFILES,
    DEFAULT_UPPER_BYTES,
    Feeds,
    OnNoTeacher,
    ReaderConfig,
    feed_pairs,
    profiles_of,
    rank_of,
    security_of,
)
from .label_forms import LabelForms
from .options import (
    DEFAULT_CANARIES,
    DEFAULT_LIMITS,
    DEFAULT_TIMEOUTS,
    DEFAULT_TRACE_BYTES,
    TLS,
    CanaryPolicy,
    EnsemblePolicy,
    Limits,
    Timeouts,
    Trace,
    naming_moved,
    services_of,
)
from .pipeline import Convert, Pipeline
from .saved_state import State, loaded, saved
from .sources import batched, source_of
from .sources.batched import Collate, MakesGenerator
from .sources.source import Source
from .stats import Callback, ReaderStats
from .store import LabelStore


class DistilReader:
    """Iterates the batches of `source`, each with the soft labels that teachers gave it.

    In order, each batch exactly once, whatever happens to teachers (the paper, sections 3.1, 3.2).
    Batches are tuples, lists or dicts of numpy arrays or tensors of Paddle or PyTorch; soft labels
    come behind the fields of a tuple or list, under the model's outputs in a dict. A reader may be
    iterated again, left early, and lives beside others in one process. Without `with` it closes
    itself when it is collected or the interpreter ends. Batches that were taken stay valid.

    Args:
        source: any re-iterable of batches, such as a `DataLoader` of Paddle or PyTorch.
        service: name of the set of teachers to ask; or several with weights, as in
            `{"a": 0.7, "b": 0.3}`, whose labels are averaged as probabilities (float32).
        coordinator: Redis URL of the mesh, as in `redis://head:6379`.
        teachers: addresses `host:port`, in place of a coordinator; by service if there are several.
        ensemble: how labels of several services are averaged, and what is done without one.
        feeds: what of a batch the teachers get: fields in the order of the model's inputs, as in
            `[0]` or `["image"]`, or a dict from model input to field. By default the fields that
            have the names of the inputs; if no field has such a name, the first ones.
        fetches: model outputs that come back, as soft labels, in this order; by default all.
        label_form: in which form soft labels travel: "float32", "bfloat16", "float16" or "topk:K";
            for every output, or by output, as in `{"logits": "topk:20"}`. By default as the model
            gives them.
        temperature: have the teacher send softmax(logits / temperature) in place of logits; for
            every output, or by output.
        soft_label_is: state that the model gives "logits" or "probabilities"; for every output, or
            by output. A teacher that publishes a kind that does not fit is a UsageError; where a
            `temperature` is set nothing is checked. By default nothing is stated, and labels of
            several services are averaged by what their teachers publish.
        expand_labels: soft labels come out as dense float32 in whichever form they travelled: what
            top-k has left out shares its mass evenly. False: as they travelled, top-k as three
            arrays, values, indices (int64) and tail mass.
        upper_bytes: `ut` of Algorithm 1: above so many bytes of labelled batches none is pulled.
        lower_bytes: `lt`: below so many bytes pulling goes on; by default half of `upper_bytes`.
        limits: of what is on its way, and the size of requests; see `Limits`.
        job: name of this training in the mesh. One that has a name begins with as many teachers as
            it needed the last time.
        rank: number of this student in its job; by default the one that torchrun (`RANK`) or
            paddle.distributed.launch (`PADDLE_TRAINER_ID`) has given this process, else 0.
        world_size: ranks among which the reader divides a map-style source, by ids; an iterable is
            asked for `shard(rank, world_size)`. By default the source has this rank's batches only.
        uneven: the batches of an epoch that do not go round: "keep" gives each to one rank, so that
            some have one batch less; "drop" leaves them out; "pad" repeats the epoch's first ones.
        seed: of the order in which a map-style source is read; the same for all ranks.
        ordered: deliver batches in the order of the source; False: as soon as labels are there.
        deterministic: labels do not depend, to the last bit, on who gives them: only teachers of
            one `numerics_id` do, each request is one whole batch, and nothing tunes itself.
        teachers_min: never ask for fewer teachers. When they are short, this many come before what
            others want beyond theirs, whatever the priorities.
        teachers_max: never ask for more.
        priority: when teachers are short, a job of a greater one has what it wants before others
            have more than their `teachers_min`. The same for all ranks of a job.
        timeouts: of requests, and of what is done without teachers; see `Timeouts`.
        no_teacher: while there is none, "wait"; or let batches go with None in the place of soft
            labels ("hard_only", counted in `stats.unlabelled`); or "fail".
        canaries: how often and how closely answers are compared with another teacher's, so that one
            that answers wrong labels is found out; None: never.
        store: keep soft labels on disk, as in `LabelStore("labels.edl", 20 << 30)`: samples whose
            labels lie there are not sent to teachers.
        profiles: folder where the times of a run are kept for the next start of its `job`; None:
            they are not.
        shared_memory: let teachers on this host read batches in the reader's own memory, where they
            can; False sends every batch over the network.
        tls: certificates of teachers and managers, and the reader's own; see `TLS`.
        token_file: file with the token that the reader shows them; read again when it changes.
        metrics_listen: "PORT" or "HOST:PORT" where the engine serves Prometheus metrics.
        callbacks: told of what happens to the reader; see `Callback`.
        trace: file for a timeline that opens in Perfetto: who worked and who waited when; or a
            `Trace` with its size.
        insecure: allow what others on the network could read: a token without TLS to another host,
            metrics on an address that is not loopback.

    Raises:
        UsageError: settings that cannot work. While iterating, what the source raised, as it is;
            PoisonBatch, NoTeacherAvailable, LeaseSuperseded, Forbidden or EngineLost where the mesh
            cannot go on.
    """

    @naming_moved
    def __init__(
        self,
        source: Iterable[Any] | Source,
        *,
        service: str | Mapping[str, float],
        coordinator: str | None = None,
        teachers: Sequence[str] | Mapping[str, Sequence[str]] = (),
        ensemble: EnsemblePolicy | None = None,
        feeds: Feeds | None = None,
        fetches: Sequence[str] | None = None,
        label_form: str | Mapping[str, str] | None = None,
        temperature: float | Mapping[str, float] | None = None,
        soft_label_is: SoftLabelIs | Mapping[str, SoftLabelIs] | None = None,
        expand_labels: bool = True,
        upper_bytes: int = DEFAULT_UPPER_BYTES,
        lower_bytes: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
        job: str = DEFAULT_JOB,
        rank: int | None = None,
        world_size: int = 1,
        uneven: Uneven = "keep",
        seed: int = 0,
        ordered: bool = True,
        deterministic: bool = False,
        teachers_min: int = 1,
        teachers_max: int = 64,
        priority: int = 0,
        no_teacher: OnNoTeacher = "wait",
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        canaries: CanaryPolicy | None = DEFAULT_CANARIES,
        store: LabelStore | None = None,
        profiles: str | Path | None = DEFAULT_PROFILES,
        shared_memory: bool = True,
        tls: TLS | None = None,
        token_file: str | Path | None = None,
        metrics_listen: str = "",
        callbacks: Sequence[Callback] = (),
        trace: str | Path | Trace | None = None,
        insecure: bool = False,
    ) -> None:
        limits = of_kind("limits", limits, Limits)
        timeouts = of_kind("timeouts", timeouts, Timeouts)
        tls = TLS() if tls is None else of_kind("tls", tls, TLS)
        timeline = trace if isinstance(trace, Trace) or trace is None else Trace(trace)
        self.source = source
        name, addresses, mixing = services_of(service, teachers, ensemble)
        self.config = ReaderConfig(
            service=name,
            coordinator=coordinator,
            teachers=addresses,
            mixing=mixing,
            feeds=feed_pairs(feeds),
            fetches=texts("fetches", fetches or (), "logits"),
            labels=LabelForms.given(label_form, temperature, expand_labels, soft_label_is),
            upper_bytes=upper_bytes,
            lower_bytes=whole("upper_bytes", upper_bytes) // 2
            if lower_bytes is None
            else lower_bytes,
            buffer_bytes=max(DEFAULT_BUFFER_BYTES, upper_bytes)
            if limits.buffer_bytes is None
            else limits.buffer_bytes,
            job=job,
            rank=rank_of(rank),
            world_size=world_size,
            uneven=uneven,
            seed=seed,
            ordered=ordered,
            request_rows=limits.request_rows,
            deterministic=deterministic,
            window=limits.window,
            window_max=limits.window_max,
            teachers_min=teachers_min,
            teachers_max=teachers_max,
            priority=priority,
            request_s=timeouts.request_s,
            no_teacher=no_teacher,
            no_teacher_s=timeouts.no_teacher_s,
            wait_s=timeouts.wait_s,
            canaries=canaries,
            store=store,
            profiles=profiles_of(profiles, coordinator, job),
            shared_memory=shared_memory,
            security=security_of(tls, token_file, insecure=insecure),
            metrics_listen=metrics_listen,
            trace="" if timeline is None else str(path("trace", timeline.path).absolute()),
            trace_max_bytes=DEFAULT_TRACE_BYTES if timeline is None else timeline.max_bytes,
            insecure=insecure,
        )
        self._source = source_of(source, self.config.shard(), seed)
        self._pipeline = Pipeline(self.config, self._source, callbacks)
        weakref.finalize(self, self._pipeline.close_soon).atexit = False

    @classmethod
    def from_sample_generator(
        cls,
        generator: MakesGenerator,
        *,
        batch_size: int,
        drop_last: bool = False,
        collate: Collate | None = None,
        **options: Any,
    ) -> Self:
        """A reader of a function that yields sample by sample; called anew for each epoch.

        Args:
            generator: yields tuples, lists or dicts of numpy arrays and numbers, or one array.
            batch_size: samples of a batch.
            drop_last: leave a last batch out that is not full.
            collate: makes a batch of a list of samples; by default field by field, by stacking.
            **options: `service` and all that `DistilReader` takes besides.
        """
        made = batched.of_samples(generator, batch_size, drop_last, collate)
        return cls(made, **options)

    @classmethod
    def from_sample_list_generator(
        cls, generator: MakesGenerator, *, collate: Collate | None = None, **options: Any
    ) -> Self:
        """A reader of a function that yields the samples of a batch as a list; else as above."""
        return cls(batched.of_sample_lists(generator, collate), **options)

    @classmethod
    def from_batch_generator(cls, generator: MakesGenerator, **options: Any) -> Self:
        """A reader of a function that yields batch by batch; called anew for each epoch."""
        return cls(batched.of_batches(generator), **options)

    def __len__(self) -> int:
        """Batches of an epoch, for this rank: what the source says."""
        return len(self._source)

    def __iter__(self) -> Epoch:
        """A new epoch; one that is still being read is left, and nothing more comes of it.

        The first one after `load_state_dict` has the batches that remain of the epoch that the
        state is of.
        """
        return self.iterate(None)

    def iterate(self, convert: Convert | None) -> Epoch:
        """As `iter`, each batch as `convert` returns it.

        Where it raises, the batch does not count as taken: it is the next one again.
        """
        return Epoch(self, self._pipeline, self._pipeline.begin(), convert)

    def state_dict(self) -> dict[str, Any]:
        """How far the training loop has come, as JSON values: by what it was handed, not by reads.

        An epoch that was left early counts as being read until the next one begins.
        """
        return saved(self._pipeline.stream.progress, self._source, self.config)

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Have the next epoch go on where `state_dict` was called; a present one is left.

        Args:
            state: of this rank. To go on with another number of ranks than before, those of all the
                ranks there were.

        Raises:
            UsageError: it is of another source or rank, or it does not say where so many ranks
                could go on.
        """
        self._pipeline.resume(loaded(state, self._source, self.config))

    @property
    def stats(self) -> ReaderStats:
        """Its figures: behind an epoch of all of it, within one as of the last 0.2 seconds."""
        return self._pipeline.stats()

    @property
    def progress(self) -> str:
        """One line for a progress bar: rate, volume, teachers, and who waited how long."""
        return self.stats.line()

    def story(self, batch: int) -> list[str]:
        """Why a batch went where it went: events that concern it, and what followed from each.

        The engine remembers its last 4,096 events, and nothing from before it was restarted.

        Args:
            batch: its number in logs and in the timeline: batches are counted over all epochs.

        Returns:
            One line for each event or action, the oldest first; none if nothing is remembered.
        """
        return self._pipeline.engine.story(batch)

    @property
    def engine_pid(self) -> int:
        """Process id of the engine that works for this reader now."""
        return self._pipeline.engine.pid

    def close(self) -> None:
        """End the engine and give the buffer back; again without effect."""
        self._pipeline.close()

    def __reduce__(self) -> Any:
        raise UsageError(
            "a reader can be neither copied nor pickled: it has processes and threads of its own;"
            " make one in each process that trains"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Epoch(Iterator[Any]):
    """One iteration of a reader; leaving it early, by `break` or `del`, ends its epoch.

    Raises:
        UsageError: more is asked of it after another epoch has begun: it would seem to have ended.
    """

    def __init__(
        self, reader: object, pipeline: Pipeline, epoch: int, convert: Convert | None
    ) -> None:
        self._reader = reader  # which must not be collected while it is read
        self._pipeline = pipeline
        self._epoch = epoch
        self._convert = convert
        self._returned_at: float | None = None
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        called_at = time.monotonic()
        step_s = None if self._returned_at is None else called_at - self._returned_at
        try:
            batch = self._pipeline.next(self._epoch, step_s, self._convert)
        except StopIteration:
            if self._pipeline.stream.epoch == self._epoch:
                self._ended = True
                raise
            raise UsageError(
                "this epoch was left unfinished, as another one of the same reader was begun or a"
                " state was loaded; take the batches from the latest iterator, or make two readers"
            ) from None
        self._returned_at = time.monotonic()
        self._pipeline.stream.undelivered = None
        return batch

    def close(self) -> None:
        """Leave the epoch; the reader can be iterated again."""
        self._ended = True
        # Not at once: a generator that delegates to this one calls it when it is collected, which
        # may be inside any call of ours.
        self._pipeline.leave_soon(self._epoch)

    def __del__(self) -> None:
        self._pipeline.leave_soon(self._epoch)
