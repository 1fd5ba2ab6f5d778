"""The start of a rank, until its first step: parts of the job, data, checkpoint, process group."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...runtime.errors import UsageError
from ...scheduler.students.agreement import RowShares
from ...scheduler.students.weights import factor as scaling_factor
from ..checkpoint import open_checkpoint
from ..checkpoint.capture import TrainingObjects, restore, seed_all
from ..checkpoint.contents import Contents
from ..evaluate import RankEvaluation
from ..feeding import make_reader, source_for, steps_of
from ..frameworks import LearningRate
from ..job.assembly import Assembly, assemble
from ..job.spec import load_job
from ..link import RankLink
from ..messages import Order, Ready, Scaled
from .learner import Learner, TrainingPosition
from .loop import Loop, do_nothing
from .prefetcher import BatchPrefetcher, Shares
from .reporting import EPOCH, EVALUATED, FACTOR, FEED, METRICS, RankReporter, Saver

log = logging.getLogger(__name__)


def start(order: Order, link: RankLink) -> tuple[Loop, Ready]:
    """Prepare a rank: load the job, restore the checkpoint, join the other ranks.

    Returns:
        The loop, ready for its first step, and the `Ready` message for the supervisor.

    Raises:
        UsageError: the job file or a setting is wrong, or the checkpoint does not fit them.
        CheckpointDamaged: the checkpoint is damaged.
        CheckpointUnavailable: the checkpoint cannot be read now.
        PeerLost: another rank is gone.
        EdlError: the log of ids cannot be written.
    """
    settings, rank, world = order.settings, order.rank, order.world
    spec = load_job(settings.job_file)
    framework = spec.framework
    device = framework.set_device(order.local_rank)
    contents = open_checkpoint(order.restore) if order.restore else None
    state = {} if contents is None else contents.state
    # An epoch restarts if the order of its samples has changed: saved positions would be wrong.
    saved_feed = None if order.restarts_epoch else state.get(FEED)
    step = 0 if contents is None else contents.step
    position = TrainingPosition(step, int(state.get(EPOCH, 0)), int(state.get(EVALUATED, step)))
    shares = Shares(RowShares.equal(world, world), rank)
    source = source_for(
        spec.feed("train"),
        settings=settings,
        rank=rank,
        world=world,
        link=link,
        sizes=shares,
        saved=saved_feed,
    )
    if source.total_batch is not None:
        _check_total(source.total_batch, world)
        shares.set_shares(RowShares.equal(source.total_batch, world, position.step))
    steps = steps_of(settings, source.total_batch, source.positions)
    seed_all(framework, settings.seed)
    assembly = assemble(spec, steps)
    precision = framework.precision(settings.amp, device)
    trained = TrainingObjects(assembly.model, assembly.optimizer, precision.scaler)
    rate = _resume(assembly, trained, contents, state, order, link)
    group = framework.join(rank, order.endpoints[:world], device)
    group.share([*assembly.model.parameters(), *assembly.model.buffers()])
    learner = Learner(
        model=assembly.model,
        parameters=list(assembly.model.parameters()),
        optimizer=assembly.optimizer,
        loss=assembly.loss,
        rate=rate,
        precision=precision,
        group=group,
        micro_batch=settings.micro_batch,
    )
    saver = Saver(order, link, trained, learner, source, saved_feed, position.step)
    evaluation = RankEvaluation(spec, settings, precision)
    reader = make_reader(source, assembly.distill, settings, rank=rank, epoch=position.epoch)
    prefetcher = BatchPrefetcher(
        reader, source, assembly.loss.on_label_kinds, assembly.label_names, framework.tensor
    )
    metrics = state.get(METRICS, {})
    loop = Loop(
        learner=learner,
        prefetcher=prefetcher,
        shares=shares,
        reporter=RankReporter(order, link, saver, evaluation, prefetcher, position, metrics),
        leaving=lambda: link.leaving,
        due=saver.due,
        position=position,
        steps=settings.steps,
        epochs=settings.epochs,
        adapt=settings.deal == "dynamic" and source.total_batch is not None,
        synchronize=framework.synchronize if world > 1 and device != "cpu" else do_nothing,
    )
    return loop, Ready(position.step, position.epoch, steps or 0, source.total_batch or 0)


def _resume(
    assembly: Assembly,
    trained: TrainingObjects,
    contents: Contents | None,
    state: Mapping[str, Any],
    order: Order,
    link: RankLink,
) -> LearningRate:
    """Restore the checkpoint, and adapt to a changed number of ranks; return the learning rate.

    A change takes effect once: the next checkpoint has the new number of ranks, the changed
    learning rate, and the effects of the job's `on_scale`.
    """
    framework = assembly.spec.framework
    rate = framework.learning_rate(assembly.optimizer)
    if contents is None:
        # Initial parameters need the same seed on all ranks; from now on each rank has its own.
        if order.rank:
            seed_all(framework, order.settings.seed + 7919 * order.rank)
        return rate
    if rate.is_kept(order.optimizer_changes):
        rate.advance(contents.step)
    # Not applied twice: if `restore` loads the saved rate, which has the factor, it replaces this.
    rate.scale(float(state.get(FACTOR, 1.0)))
    restore(trained, contents, rank=order.rank, changed=order.optimizer_changes)
    old, new = contents.world, order.world
    if old not in (0, new):
        rate.scale(scaling_factor(order.settings.lr_policy, old, new))
        assembly.spec.on_scale(old, new)
        log.info("the world has %d ranks now, it had %d", new, old)
        link.send(Scaled(old, new))
    return rate


def _check_total(total: int, world: int) -> None:
    if total < world:
        raise UsageError(
            f"a step has {total} rows, which are too few for {world} ranks: give --total-batch of"
            f" {world} or more, or fewer nodes"
        )
