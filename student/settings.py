"""What `edl student train` was told: the settings of one training, alike for all its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from ..coordinator.queue.keys import is_name
from ..runtime.errors import UsageError
from ..scheduler.students.fingerprint import FIELDS
from ..scheduler.students.saving import OVERHEAD

#: How positions of an epoch reach ranks: shards that are leased, or parts fixed by the step.
Deal = Literal["dynamic", "static"]
#: In what the forward pass computes.
Amp = Literal["off", "bfloat16", "float16"]
#: What becomes of the learning rate when the world changes.
LrPolicy = Literal["keep", "linear", "sqrt"]

DEALS = ("dynamic", "static")
AMPS = ("off", "bfloat16", "float16")
LR_POLICIES = ("keep", "linear", "sqrt")

DEFAULT_HANG_S = 60.0
DEFAULT_KEEP = 3
_MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of one training; every node and rank of it has the same ones.

    Attributes:
        spec: absolute path of the job file.
        job: name of the training in the mesh, on the job board and in `edl status`.
        nodes: the fewest and the most nodes of a world; a node is one `edl student train`.
        ranks_per_node: student processes of each node.
        coordinator: Redis URL of the mesh; None: one node alone, its board in its own memory.
        teachers: addresses `host:port` to ask without a coordinator.
        total_batch: rows of one step over all ranks, whatever the world; None: the feed's own.
        micro_batch: rows of one forward pass at most, gradients of several are added up; None: a
            rank's local batch at once.
        epochs: end after so many epochs; None: `steps` says when.
        steps: end after so many steps; None: `epochs` says when. The earlier of the two counts.
        seed: of the order of samples, of initial parameters and of augmentation.
        deal: "dynamic": ranks lease shards and pull in proportion to their speed; "static": equal
            parts of each step's positions, the same whatever the timing.
        shard_rows: positions of one shard; None: chosen from the epoch and the world.
        checkpoint: folder or fsspec URL, which all nodes reach; None: a folder of this run alone,
            gone at its end; only where there is one node.
        save_every_steps: steps between two checkpoints; None: steps do not count.
        save_every_s: seconds between two checkpoints; None: time does not count.
        save_overhead: where neither is given: the part of the time that saves may take, from 0 to
            below 1; 0: saved is only when the world changes and at the end.
        keep: checkpoints that pruning leaves.
        amp: mixed precision of the forward pass.
        lr_policy: what becomes of the learning rate on a change of the world's ranks.
        hang_s: a rank without progress for so long counts as hung and is killed, seconds.
        events: folder for TensorBoard's event files; None: none.
        id_log: folder where each rank appends the samples of each step; None: none.
        accept_changes: fields of the fingerprint that may differ from the checkpoint's.
    """

    spec: str
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
    lr_policy: LrPolicy = "keep"
    hang_s: float = DEFAULT_HANG_S
    events: str | None = None
    id_log: str | None = None
    accept_changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not Path(self.spec).is_absolute():
            raise UsageError(f"the job file is named by its absolute path, not {self.spec!r}")
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
            raise UsageError(f"save_every_s must be above 0 seconds, not {self.save_every_s}")
        if not 0 <= self.save_overhead < 1:
            raise UsageError(
                f"--save-overhead is a part of the time, from 0 to below 1, as 0.02 for 2 %, not"
                f" {self.save_overhead}"
            )
        if not self.hang_s > 0:
            raise UsageError(f"hang_s must be above 0 seconds, not {self.hang_s}")
        if self.epochs is None and self.steps is None:
            raise UsageError("a training needs an end: give --epochs or --steps")
        for name, known in (("deal", DEALS), ("amp", AMPS), ("lr_policy", LR_POLICIES)):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)}")
        for name in self.accept_changes:
            if name not in FIELDS:
                raise UsageError(f"--accept-change is one of {', '.join(FIELDS)}, not {name!r}")

    def _check_world(self) -> None:
        least, most = self.nodes
        if not 1 <= least <= most:
            raise UsageError(f"--nodes MIN:MAX needs 1 <= MIN <= MAX, not {least}:{most}")
        if self.ranks_per_node < 1 or most * self.ranks_per_node > _MOST_RANKS:
            raise UsageError(
                f"a world has 1 to {_MOST_RANKS} ranks, not {most} nodes of {self.ranks_per_node}"
            )
        if self.total_batch is not None and self.total_batch < least * self.ranks_per_node:
            raise UsageError(
                f"--total-batch {self.total_batch} is too little for {least} nodes of"
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
            raise UsageError("give --redis or teachers' addresses, not both")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, which `from_json` makes the same settings of."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The settings that `to_json` told. Raises UsageError as the constructor does."""
        lists = {name: tuple(value[name]) for name in ("nodes", "teachers", "accept_changes")}
        return cls(**{**value, **lists})


def _check_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"{name} is a number from {least}, not {value}")
