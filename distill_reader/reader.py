"""`DistilReader`: the loader that a training loop iterates; the face, with the work behind it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import UsageError
from .config import DEFAULT_UPPER_BYTES, Feeds, ReaderConfig, feed_pairs, security_of
from .label_forms import LabelForms
from .pipeline import Pipeline
from .stats import ReaderStats


class DistilReader:
    """Iterates the batches of `source`, each with the soft labels that teachers gave it.

    In order, each batch exactly once, whatever happens to teachers (the paper, sections 3.1, 3.2).
    Batches are tuples, lists or dicts of numpy arrays or Paddle tensors; soft labels come behind
    the fields of a tuple or list, under the names of the model's outputs in a dict. A reader may be
    iterated again, left early, and lives beside others in one process. Without `with` it closes
    itself when it is collected or the interpreter ends. Batches that were taken stay valid.

    Args:
        source: any re-iterable of batches, such as a `paddle.io.DataLoader`.
        service: name of the set of teachers to ask.
        coordinator: Redis URL of the mesh, as in `redis://head:6379`.
        teachers: addresses `host:port`, in place of a coordinator.
        feeds: what of a batch the teachers get: fields in the order of the model's inputs, as in
            `[0]` or `["image"]`, or a dict from model input to field. By default the fields that
            bear the names of inputs, else the first ones.
        fetches: model outputs that come back, as soft labels, in this order; by default all.
        label_form: in which form soft labels travel: "float32", "bfloat16", "float16" or "topk:K";
            for every output, or by output, as in `{"logits": "topk:20"}`. By default as the model
            gives them.
        temperature: have the teacher send softmax(logits / temperature) in place of logits; for
            every output, or by output.
        expand_labels: soft labels come out as dense float32 in whichever form they travelled: what
            top-k has left out shares its mass evenly. False: as they travelled, top-k as three
            arrays, values, indices (int64) and tail mass.
        upper_bytes: `ut` of Algorithm 1: above so many bytes of labelled batches none is pulled.
        lower_bytes: `lt`: below so many bytes pulling goes on; by default half of `upper_bytes`.
        job: name of this training in the mesh.
        rank: number of this student in its job.
        window: requests in flight per teacher.
        teachers_min: never ask for fewer teachers. When they are short, this many come before what
            others want beyond theirs, whatever the priorities.
        teachers_max: never ask for more.
        priority: when teachers are short, a job of a greater one has what it wants before others
            have more than their `teachers_min`. The same for all ranks of a job.
        request_timeout_s: seconds after which an unanswered request counts as a lost teacher.
        wait_timeout_s: seconds without any teacher after which `NoTeacherAvailable` is raised;
            None waits for ever. The log says what it waits for.
        shared_memory: let teachers on this host read batches in the reader's own memory, where they
            can; False sends every batch over the network.
        tls_ca: file with the certificates that sign those of teachers and managers.
        tls_cert: file with the reader's own certificate.
        tls_key: file with the key of `tls_cert`.
        tls_server_name: what their certificates are made out to; by default the host dialled.
        token_file: file with the token that the reader shows them; read again when it changes.
        metrics_listen: "PORT" or "HOST:PORT" where the engine serves Prometheus metrics.
        insecure: allow what others on the network could read: a token without TLS to another host,
            metrics on an address that is not loopback.

    Raises:
        UsageError: settings that cannot work. While iterating, what the source raised, as it is;
            PoisonBatch, NoTeacherAvailable, LeaseSuperseded, Forbidden or EngineLost where the mesh
            cannot go on.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        service: str,
        coordinator: str | None = None,
        teachers: Sequence[str] = (),
        feeds: Feeds | None = None,
        fetches: Sequence[str] | None = None,
        label_form: str | Mapping[str, str] | None = None,
        temperature: float | Mapping[str, float] | None = None,
        expand_labels: bool = True,
        upper_bytes: int = DEFAULT_UPPER_BYTES,
        lower_bytes: int | None = None,
        job: str = "job",
        rank: int = 0,
        window: int = 2,
        teachers_min: int = 1,
        teachers_max: int = 64,
        priority: int = 0,
        request_timeout_s: float = 120.0,
        wait_timeout_s: float | None = 600.0,
        shared_memory: bool = True,
        tls_ca: str | Path | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        tls_server_name: str = "",
        token_file: str | Path | None = None,
        metrics_listen: str = "",
        insecure: bool = False,
    ) -> None:
        if isinstance(source, Iterator):
            raise UsageError(
                "an iterator can be read only once; give the reader what makes it, such as the"
                " DataLoader itself, or a class with __iter__"
            )
        self.source = source
        self.config = ReaderConfig(
            service=service,
            coordinator=coordinator,
            teachers=tuple(teachers),
            feeds=feed_pairs(feeds),
            fetches=tuple(fetches or ()),
            labels=LabelForms.given(label_form, temperature, expand_labels),
            upper_bytes=upper_bytes,
            lower_bytes=upper_bytes // 2 if lower_bytes is None else lower_bytes,
            job=job,
            rank=rank,
            window=window,
            teachers_min=teachers_min,
            teachers_max=teachers_max,
            priority=priority,
            request_timeout_s=request_timeout_s,
            wait_timeout_s=wait_timeout_s,
            shared_memory=shared_memory,
            security=security_of(
                tls_ca,
                tls_cert,
                tls_key,
                token_file,
                server_name=tls_server_name,
                insecure=insecure,
            ),
            metrics_listen=metrics_listen,
            insecure=insecure,
        )
        self._pipeline = Pipeline(self.config)
        weakref.finalize(self, self._pipeline.close_soon).atexit = False

    def __len__(self) -> int:
        """Batches of an epoch: what the source says."""
        return len(self.source)  # type: ignore[arg-type]  # a source without len() says so itself

    def __iter__(self) -> Epoch:
        """A new epoch; one that is still being read ends."""
        return Epoch(self, self._pipeline, self._pipeline.begin(self.source))

    @property
    def stats(self) -> ReaderStats:
        """Its figures at this moment."""
        stream, engine = self._pipeline.stream, self._pipeline.engine
        known = {field.name for field in fields(ReaderStats)}
        told = {key: _frozen(value) for key, value in engine.stats.items() if key in known}
        return ReaderStats(
            **{
                **told,
                "yielded": stream.pulled,
                "delivered": stream.delivered,
                "samples_delivered": stream.samples_delivered,
                "upper_bytes": self.config.upper_bytes,
                "lower_bytes": self.config.lower_bytes,
                "engine_restarts": engine.restarts,
            }
        )

    @property
    def engine_pid(self) -> int:
        """Process id of the engine that works for this reader now."""
        return self._pipeline.engine.pid

    def close(self) -> None:
        """End the engine and give the buffer back; again without effect."""
        self._pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Epoch(Iterator[Any]):
    """One iteration of a reader; leaving it early, by `break` or `del`, ends its epoch."""

    def __init__(self, reader: DistilReader, pipeline: Pipeline, epoch: int) -> None:
        self._reader = reader  # which must not be collected while it is read
        self._pipeline = pipeline
        self._epoch = epoch
        self._returned_at: float | None = None

    def __next__(self) -> Any:
        called_at = time.monotonic()
        step_s = None if self._returned_at is None else called_at - self._returned_at
        batch = self._pipeline.next(self._epoch, step_s)
        self._returned_at = time.monotonic()
        return batch

    def close(self) -> None:
        """Leave the epoch; the reader can be iterated again."""
        self._pipeline.leave(self._epoch)

    def __del__(self) -> None:
        self._pipeline.leave_soon(self._epoch)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value
