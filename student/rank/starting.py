"""The start of a rank, until its first step: parts of the job, data, checkpoint, process group."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.errors import UsageError
from ...scheduler.students.agreement import RowShares
from ..checkpoint import open_checkpoint
from ..checkpoint.capture import TrainingObjects, restore
from ..checkpoint.contents import Contents
from ..evaluate import RankEvaluation
from ..feeding import ShardedSource, UnshardedSource, make_reader, source_for
from ..frameworks import Framework, LearningRate, Precision
from ..frameworks.groups import Group
from ..job.assembly import Assembly, assemble
from ..job.spec import JobSpec, is_dataset, load_job
from ..link import RankLink
from ..messages import Order, Scaled
from ..settings import TrainSettings
from .learner import Learner, adapt_to_world
from .loop import TrainingPosition, do_nothing
from .prefetcher import BatchPrefetcher, RankData, Shares
from .reporting import EPOCH, FACTOR, FEED, METRICS, Saver

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedRank:
    """A rank that is ready for its first step.

    Attributes:
        learner: model, optimizer and loss.
        data: source of its batches.
        prefetcher: thread that takes the batches.
        shares: rows of each rank.
        saver: writes snapshots.
        evaluation: evaluates at the end of each epoch.
        position: position from which it trains.
        steps: approximate number of optimizer steps of the whole job; None: unknown.
        adapt: ranks get rows in proportion to their speed.
        synchronize: waits for the device.
    """

    learner: Learner
    data: RankData
    prefetcher: BatchPrefetcher
    shares: Shares
    saver: Saver
    evaluation: RankEvaluation
    position: TrainingPosition
    steps: int | None
    adapt: bool
    synchronize: Callable[[], None]


def start(order: Order, link: RankLink) -> PreparedRank:
    """Prepare a rank: load the job, restore the checkpoint, join the other ranks.

    Raises:
        UsageError: the job file, the settings or the checkpoint cannot work.
        PeerLost: another rank is gone.
    """
    settings, rank, world = order.settings, order.rank, order.world
    spec = load_job(settings.spec)
    framework = spec.framework
    device = framework.set_device(order.local_rank)
    contents = open_checkpoint(order.restore) if order.restore else None
    state = {} if contents is None else contents.state
    # The saved positions stand for other samples now: restart the epoch.
    fed = None if order.moved else state.get(FEED)
    position = TrainingPosition(0 if contents is None else contents.step, int(state.get(EPOCH, 0)))
    shares = Shares(RowShares.equal(world, world), rank)
    source = source_for(
        spec.feed("train"),
        settings=settings,
        rank=rank,
        world=world,
        link=link,
        sizes=shares,
        saved=fed,
    )
    if source.total_batch is not None:
        _check_total(source.total_batch, world)
        shares.set_shares(RowShares.equal(source.total_batch, world, position.step))
    steps = _steps(settings, source)
    seed_all(framework, settings.seed)
    assembly = assemble(spec, steps)
    precision = framework.precision(settings.amp, device)
    trained = TrainingObjects(assembly.model, assembly.optimizer, precision.scaler)
    rate = _resume(assembly, trained, contents, state, order, link)
    group = framework.join(rank, order.endpoints[:world], device)
    group.share([*assembly.model.parameters(), *assembly.model.buffers()])
    learner = _learner(assembly, rate, precision, group, settings.micro_batch)
    saver = Saver(order, link, trained, learner, source, fed, state.get(METRICS, {}), position.step)
    reader = make_reader(source, assembly.distill, settings, rank=rank, epoch=position.epoch)
    names = assembly.label_names if assembly.needs_teachers else ()
    return PreparedRank(
        learner,
        RankData(source, names, framework.tensor),
        BatchPrefetcher(reader, source, assembly.loss.on_label_kinds),
        shares,
        saver,
        _evaluation(spec, settings, precision),
        position,
        steps,
        adapt=settings.deal == "dynamic" and source.total_batch is not None,
        synchronize=framework.synchronize if world > 1 and device != "cpu" else do_nothing,
    )


def seed_all(framework: Framework, seed: int) -> None:
    """Seed the random generators of the framework, of numpy and of Python."""
    framework.seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _resume(
    assembly: Assembly,
    trained: TrainingObjects,
    contents: Contents | None,
    state: Mapping[str, Any],
    order: Order,
    link: RankLink,
) -> LearningRate:
    """Restore the checkpoint, and adapt to a change of the number of ranks since then."""
    framework = assembly.spec.framework
    rate = framework.learning_rate(assembly.optimizer)
    if contents is None:
        if order.rank:  # parameters come from rank 0, but each rank draws its own random numbers
            seed_all(framework, order.settings.seed + 7919 * order.rank)
        return rate
    restore(trained, contents, rank=order.rank)
    rate.factor = float(state.get(FACTOR, 1.0))
    old, new = contents.world, order.world
    if adapt_to_world(order.settings.lr_policy, old, new, rate, assembly.spec.on_scale):
        log.info("the world has %d ranks now, it had %d", new, old)
        link.send(Scaled(old, new))
    return rate


def _learner(
    assembly: Assembly,
    rate: LearningRate,
    precision: Precision,
    group: Group,
    micro_batch: int | None,
) -> Learner:
    return Learner(
        assembly.model,
        list(assembly.model.parameters()),
        assembly.optimizer,
        assembly.loss,
        rate,
        precision,
        group,
        micro_batch,
    )


def _check_total(total: int, world: int) -> None:
    if total < world:
        raise UsageError(
            f"a step has {total} rows, which are too few for {world} ranks: give --total-batch of"
            f" {world} or more, or fewer nodes"
        )


def _steps(settings: TrainSettings, source: ShardedSource | UnshardedSource) -> int | None:
    """Return the optimizer steps of the whole job; inexact if ranks end an epoch apart."""
    known = [] if settings.steps is None else [settings.steps]
    if settings.epochs is not None and source.total_batch is not None:
        positions = source.positions(0)
        if positions is not None:
            known.append(settings.epochs * -(-positions // source.total_batch))
    return min(known, default=None)


def _evaluation(spec: JobSpec, settings: TrainSettings, precision: Precision) -> RankEvaluation:
    def feed() -> Any:
        given = spec.feed("eval")
        if not is_dataset(given):
            return given
        from ...distill_reader.sources.batched import Batched

        return Batched(given, settings.micro_batch or settings.total_batch or 64)

    return RankEvaluation(spec, feed, precision)
