"""`DistilReader`: the loader that a training loop iterates."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..proto.forms import SoftLabelIs
from ..runtime.errors import UsageError
from ..scheduler.students.shards import Uneven
from .config import (
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
    trace_of,
)
from .label_forms import LabelForms
from .options import (
    DEFAULT_CANARIES,
    DEFAULT_LIMITS,
    DEFAULT_TIMEOUTS,
    TLS,
    CanaryPolicy,
    EnsemblePolicy,
    Limits,
    Timeouts,
    Trace,
    explain_former_parameters,
    services_of,
)
from .pipeline import Convert, Pipeline
from .saved_state import State, from_state, to_state
from .setting_checks import instance_of, integer, texts
from .sources import batched, source_of
from .sources.batched import Collate, GeneratorFunction
from .sources.source import ResumableSource
from .stats import Callback, ReaderStats
from .store import LabelStore


class DistilReader:
    """Iterates the batches of `source` and adds soft labels of teachers to each.

    Batches come in order, each exactly once, whatever happens to teachers (sections 3.1 and 3.2 of
    the paper). They are tuples, lists or dicts of numpy arrays or tensors of Paddle or PyTorch.
    Soft labels are appended to a tuple or list, and added to a dict under the names of the model's
    outputs. A reader can be iterated repeatedly and left early; several can coexist in a process.
    Without `with`, a reader closes when it is garbage-collected or the interpreter ends. Batches
    that the training loop has received remain valid.

    Iterating raises exceptions of the source unchanged, and UsageError for settings or batches that
    do not fit the model. If the stream cannot continue, it raises another EdlError, such as
    PoisonBatch, NoTeacherAvailable, LeaseSuperseded, AccessError, MemoryRefused or EngineLost.

    Args:
        source: iterable of batches that can be read repeatedly, such as a `DataLoader` of Paddle or
            PyTorch.
        service: name of the teachers' service; or several with weights, as in
            `{"a": 0.7, "b": 0.3}`; their labels are averaged as probabilities (float32).
        coordinator: Redis URL of the mesh, as in `redis://head:6379`.
        teachers: addresses `host:port` of teachers, instead of a coordinator; with several
            services, a dict from service to addresses.
        ensemble: how labels of several services are averaged, and what happens if one is missing.
        feeds: the fields of a batch that teachers get: a list in the order of the model's inputs,
            as in `[0]` or `["image"]`, or a dict from model input to field. By default, the fields
            with the names of the inputs; if no field has such a name, the first fields.
        fetches: model outputs to return as soft labels, in this order; by default all.
        label_form: wire form of soft labels: "float32", "bfloat16", "float16" or "topk:K"; for
            every output, or by output, as in `{"logits": "topk:20"}`. By default, the model's own.
        temperature: have the teacher send softmax(logits / temperature) instead of logits; for
            every output, or by output.
        soft_label_is: what the model returns, "logits" or "probabilities"; for every output, or by
            output. Teachers that publish another kind are ejected, unless `temperature` is set for
            the output; log-probabilities count as logits. Iterating raises UsageError if no teacher
            fits from the start. Before labels of several services are averaged, logits get a
            softmax; by default, the kind that teachers publish decides.
        expand_labels: return soft labels as dense float32 if a `label_form` or `temperature` is set
            for them: the classes that top-k leaves out share the remaining mass evenly. False:
            return the wire form; top-k as three arrays: values, indices (int64) and tail mass.
        upper_bytes: threshold `ut` of Algorithm 1: pulling pauses when labelled batches exceed this
            size.
        lower_bytes: threshold `lt`: pulling resumes below this size; by default half of
            `upper_bytes`.
        limits: limits of buffered batches, requests in flight and request size; see `Limits`.
        job: name of this training in the mesh. A named training starts with as many teachers as its
            last run needed.
        rank: rank of this student in its job; by default the one that torchrun (`RANK`) or
            paddle.distributed.launch (`PADDLE_TRAINER_ID`) sets for this process, else 0.
        world_size: number of ranks among which the reader divides the source: a map-style source by
            sample ids, any other by its method `shard(rank, world_size)`. By default, the source
            has only this rank's batches.
        uneven: what to do with the last batches of an epoch if there are fewer of them than ranks:
            "keep" gives each to one rank, so that some ranks have one batch less; "drop" omits
            them; "pad" adds the first batches of the epoch.
        seed: seed of the order of a map-style source (>= 0); the same for all ranks.
        ordered: deliver batches in the order of the source; False: in the order of labelling.
        deterministic: make labels independent of the teacher, to the last bit: use only teachers
            with one `numerics_id`, send whole batches, and keep the number of requests in flight
            fixed.
        teachers_min: never ask for fewer teachers. If teachers are scarce, each student gets its
            `teachers_min` before any student gets more, regardless of priority.
        teachers_max: never ask for more teachers.
        priority: if teachers are scarce, jobs of higher priority get all they want before others
            get more than their `teachers_min`. The same for all ranks of a job.
        no_teacher: what to do while there is no teacher: "wait" for one; "hard_only": deliver
            batches with None for each soft label, counted in `stats.unlabelled`; or "fail". See
            `Timeouts`.
        timeouts: timeouts of requests, and of waiting for teachers; see `Timeouts`.
        canaries: how often, and with which tolerance, labels of two teachers are compared to find a
            teacher with wrong labels; None: never.
        store: keeps soft labels on disk, as in `LabelStore("labels.edl", 20 << 30)`: stored samples
            are not sent to teachers.
        profiles: folder for measured times, which the next run of `job` starts with; None: not
            kept.
        shared_memory: let teachers on this host read batches from shared memory; False: send every
            batch over the network.
        tls: certificates for connections to teachers and managers; see `TLS`.
        token_file: file with the reader's token for teachers and managers; read again when it
            changes.
        metrics_listen: "PORT" or "HOST:PORT" for the engine's Prometheus metrics.
        callbacks: called on events of the reader; see `Callback`.
        trace: path of a file for a timeline of work and waiting, to open in Perfetto; or a `Trace`.
        insecure: allow sending the token to another host without TLS, and serving metrics on an
            address that is not loopback. Others on the network could read both.

    Raises:
        UsageError: settings are wrong or contradict each other.
        ProcessFailed: the system refuses memory, descriptors, a process or a thread.
    """

    @explain_former_parameters
    def __init__(
        self,
        source: Iterable[Any] | ResumableSource,
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
        upper_bytes = integer("upper_bytes", upper_bytes)
        tls = TLS() if tls is None else instance_of("tls", tls, TLS)
        self.source = source
        name, addresses, ensemble_config = services_of(service, teachers, ensemble)
        self.config = ReaderConfig(
            service=name,
            coordinator=coordinator,
            teachers=addresses,
            ensemble=ensemble_config,
            feeds=feed_pairs(feeds),
            fetches=texts("fetches", fetches or (), "logits"),
            labels=LabelForms.from_user(label_form, temperature, expand_labels, soft_label_is),
            upper_bytes=upper_bytes,
            lower_bytes=upper_bytes // 2 if lower_bytes is None else lower_bytes,
            job=job,
            rank=rank_of(rank),
            world_size=world_size,
            uneven=uneven,
            seed=seed,
            ordered=ordered,
            deterministic=deterministic,
            limits=instance_of("limits", limits, Limits),
            teachers_min=teachers_min,
            teachers_max=teachers_max,
            priority=priority,
            no_teacher=no_teacher,
            timeouts=instance_of("timeouts", timeouts, Timeouts),
            canaries=canaries,
            store=store,
            profiles=profiles_of(profiles, coordinator, job),
            shared_memory=shared_memory,
            security=security_of(tls, token_file, insecure=insecure),
            metrics_listen=metrics_listen,
            trace=trace_of(trace),
            insecure=insecure,
        )
        self._source = source_of(source, self.config.shard(), seed, self.config.rank)
        self._pipeline = Pipeline(self.config, self._source, callbacks)
        weakref.finalize(self, self._pipeline.close_soon).atexit = False

    @classmethod
    def from_sample_generator(
        cls,
        generator: GeneratorFunction,
        *,
        batch_size: int,
        drop_last: bool = False,
        collate: Collate | None = None,
        **options: Any,
    ) -> Self:
        """Create a reader for a function that yields samples and is called once per epoch.

        Args:
            generator: yields tuples, lists or dicts of numpy arrays and numbers, or single arrays.
            batch_size: samples per batch.
            drop_last: omit the last batch if it is not full.
            collate: makes a batch of a list of samples; by default, stacks field by field.
            **options: further arguments of `DistilReader`.
        """
        source = batched.of_samples(generator, batch_size, drop_last, collate)
        return cls(source, **options)

    @classmethod
    def from_sample_list_generator(
        cls, generator: GeneratorFunction, *, collate: Collate | None = None, **options: Any
    ) -> Self:
        """Create a reader for a generator function that yields a list of samples for each batch."""
        return cls(batched.of_sample_lists(generator, collate), **options)

    @classmethod
    def from_batch_generator(cls, generator: GeneratorFunction, **options: Any) -> Self:
        """Create a reader for a function that yields batches and is called once per epoch."""
        return cls(batched.of_batches(generator), **options)

    def __len__(self) -> int:
        """Return the batches per epoch of this rank; raises TypeError if unknown."""
        return len(self._source)

    def __iter__(self) -> Epoch:
        """Begin a new epoch; the current epoch ends, and its iterator becomes invalid.

        After `load_state_dict`, the first epoch has the remaining batches of the saved epoch.
        """
        return self.iterate(None)

    def iterate(self, convert: Convert | None) -> Epoch:
        """Begin a new epoch like `iter(reader)`, and apply `convert` to each batch.

        If `convert` raises, the batch counts as not taken, and the next `next()` returns it again.
        A StopIteration of `convert` would end the epoch, so UsageError is raised instead.
        """
        return Epoch(self, self._pipeline, self._pipeline.begin(), convert)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training loop in the source, as JSON values.

        The position counts batches that the loop received, not those that were read ahead. An epoch
        that was left early counts as current until the next one begins.
        """
        return to_state(self._pipeline.stream.progress, self._source, self.config)

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Leave the current epoch; the next one begins where `state_dict` was called.

        Args:
            state: state of this rank; to resume with another number of ranks, the states of all
                former ranks.

        Raises:
            UsageError: a state was not saved by a reader, or is of another source or rank; the
                states do not suffice for this number of ranks; or the reader is closed.
        """
        self._pipeline.resume(from_state(state, self._source, self.config))

    @property
    def stats(self) -> ReaderStats:
        """Current statistics: complete after an epoch, else at most 0.2 s old.

        They are older, and a warning is logged, if the engine does not answer within 10 s.
        """
        return self._pipeline.stats()

    @property
    def progress(self) -> str:
        """One line for a progress bar; see `ReaderStats.line`."""
        return self.stats.line()

    def story(self, batch: int) -> list[str]:
        """Return the recorded events of a batch and the resulting actions of the engine.

        For debugging. The engine keeps the last 4,096 events of each service; a new engine starts
        without them.

        Args:
            batch: number of the batch over all epochs, as in logs and in the timeline.

        Returns:
            One line for each event or action, the oldest first; empty if none is recorded, or if
            the engine does not answer in time.

        Raises:
            UsageError: `batch` is not an integer.
        """
        return self._pipeline.engine.story(integer("batch", batch))

    @property
    def engine_pid(self) -> int:
        """Process id of the current engine."""
        return self._pipeline.engine.pid

    def close(self) -> None:
        """End the engine and free the buffers. Idempotent."""
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
    """The iterator over one epoch of a reader. Dropping it early (`break`, `del`) ends the epoch.

    Raises:
        UsageError: `next` is called after another epoch has begun or a state was loaded.
    """

    def __init__(
        self, reader: object, pipeline: Pipeline, epoch: int, convert: Convert | None
    ) -> None:
        self._reader = reader  # keeps it from being garbage-collected while it is iterated
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
                "this epoch was left unfinished, because another epoch of the same reader was begun"
                " or a state was loaded; take the batches from the latest iterator, or make two"
                " readers"
            ) from None
        self._returned_at = time.monotonic()
        self._pipeline.stream.undelivered = None
        return batch

    def close(self) -> None:
        """Leave the epoch; the reader can be iterated again."""
        self._ended = True
        # In another thread: a generator that delegates to this iterator calls `close` when it is
        # garbage-collected, which may happen during any call.
        self._pipeline.abandon_soon(self._epoch)

    def __del__(self) -> None:
        self._pipeline.abandon_soon(self._epoch)
