"""Settings of one training, as given to `edl student train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..coordinator.job_queue import is_name
from ..runtime.errors import UsageError
from ..scheduler.students.fingerprint import FIELDS
from ..scheduler.students.saving import DEFAULT_KEEP, OVERHEAD
from ..scheduler.students.weights import LearningRateScaling

#: How ranks divide the samples of an epoch: leased shards, or fixed parts of each step.
Deal = Literal["dynamic", "static"]
#: Mixed precision of the forward pass.
Amp = Literal["off", "bfloat16", "float16"]

DEFAULT_HANG_S = 60.0
_MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of one training, as a node and its ranks use them.

    Settings in the job's fingerprint must be equal on all nodes, others may differ.

    Attributes:
        job_file: absolute path of the job file.
        job: name of the training in the mesh, on the job board and in `edl status`.
        nodes: lower and upper limit of the number of nodes that train together (a *world*); a
            node is one process `edl student train`.
        ranks_per_node: student processes of each node.
        coordinator: Redis URL of the mesh; None: a single node, with its job board in memory.
        teachers: addresses `host:port` of teachers, if there is no coordinator.
        total_batch: rows of one step, of all ranks together; None: the feed's batch size.
        micro_batch: limit of the rows of one forward pass; the gradients of several passes are
            summed. None: the rank's whole batch.
        epochs: end after this number of epochs; None: no limit.
        steps: end after this number of steps; None: no limit. Of both limits, the lower applies.
        seed: seed of the order of samples, of initial parameters and of augmentation.
        deal: "dynamic": ranks lease shards and get rows in proportion to their speed; "static":
            each rank has a fixed, equal part of the positions of each step.
        shard_rows: positions of one shard; None: computed from the epoch's length and the number
            of ranks.
        checkpoint: folder or fsspec URL that all nodes can access; None, for a single node only: a
            temporary folder, which is deleted at the end.
        save_every_steps: steps between checkpoints; None: not by steps.
        save_every_s: seconds between checkpoints; None: not by time.
        save_overhead: if both intervals above are None, the part of the time that saves may take,
            from 0 to below 1; 0: save only when the world changes and at the end.
        keep: number of valid checkpoints that stay when a save removes older ones.
        amp: mixed precision of the forward pass.
        lr_policy: how the learning rate changes with the number of ranks.
        hang_s: kill a rank that reports no step for this many seconds. During its start, the limit
            is three times as long, and at least 120 s. A rank is not killed while it reports that
            it waits for something outside, such as labels.
        events: folder of TensorBoard's event files; None: write none.
        id_log: folder where each rank appends the sample ids of each step; None: no log.
        accept_changes: fields of the fingerprint that may differ from the checkpoint's.
    """

    job_file: str
    job: str
    nodes: tuple[int, int] = (1, 1)
    ranks_per_node: int = 1
    coordinator: str | None = None
    teachers: tuple[str, ...] = ()
    total_batch: int | None = None
    micro_batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    deal: Deal = "dynamic"
    shard_rows: int | None = None
    checkpoint: str | None = None
    save_every_steps: int | None = None
    save_every_s: float | None = None
    save_overhead: float = OVERHEAD
    keep: int = DEFAULT_KEEP
    amp: Amp = "off"
    lr_policy: LearningRateScaling = "keep"
    hang_s: float = DEFAULT_HANG_S
    events: str | None = None
    id_log: str | None = None
    accept_changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not Path(self.job_file).is_absolute():
            raise UsageError(f"the path of the job file must be absolute, not {self.job_file!r}")
        if not is_name(self.job):
            raise UsageError(
                f"the job's name {self.job!r} must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with"
                " a letter or digit"
            )
        for name in ("total_batch", "micro_batch", "epochs", "steps", "shard_rows", "keep"):
            _check_at_least(name, getattr(self, name), 1)
        self._check_world()
        _check_at_least("save_every_steps", self.save_every_steps, 1)
        _check_at_least("seed", self.seed, 0)
        if self.save_every_s is not None and not self.save_every_s > 0:
            raise UsageError(f"--save seconds= must be above 0 seconds, not {self.save_every_s}")
        if not 0 <= self.save_overhead < 1:
            raise UsageError(
                "--save overhead= is a part of the time, from 0 to below 1, as 0.02 for 2 %, not"
                f" {self.save_overhead}"
            )
        if not self.hang_s > 0:
            raise UsageError(f"--hang must be above 0 seconds, not {self.hang_s}")
        if self.epochs is None and self.steps is None:
            raise UsageError("a training needs an end: give --epochs or --steps")
        for name in self.accept_changes:
            if name not in FIELDS:
                raise UsageError(
                    f"--accept-change must be one of {', '.join(FIELDS)}, not {name!r}"
                )

    def _check_world(self) -> None:
        least, most = self.nodes
        if not 1 <= least <= most:
            raise UsageError(f"--nodes MIN:MAX needs 1 <= MIN <= MAX, not {least}:{most}")
        if self.ranks_per_node < 1 or most * self.ranks_per_node > _MOST_RANKS:
            raise UsageError(
                f"a world has 1 to {_MOST_RANKS} ranks, not {most} nodes of"
                f" {self.ranks_per_node} ranks"
            )
        if self.total_batch is not None and self.total_batch < least * self.ranks_per_node:
            raise UsageError(
                f"--total-batch {self.total_batch} is too small for {least} nodes of"
                f" {self.ranks_per_node} ranks: each rank needs a row of every step"
            )
        if most > 1 and self.coordinator is None:
            raise UsageError(
                f"--nodes {least}:{most} needs --redis redis://host:6379: nodes find each"
                " other there"
            )
        if most > 1 and self.checkpoint is None:
            raise UsageError(
                f"--nodes {least}:{most} needs --checkpoint with a folder or URL that all nodes"
                " reach: a new world begins from there"
            )
        if self.coordinator is not None and self.teachers:
            raise UsageError("give --redis or --teachers, not both: --redis finds teachers")


def _check_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"{name} must be at least {least}, not {value}")
