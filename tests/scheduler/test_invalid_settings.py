"""Settings that cannot be are refused, with a message that names them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from edl.benchmarks.elastic_simulation import SimulatedJob, SimulatedPool
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.teachers.replica_count import ReplicaBounds
from edl.runtime.errors import UsageError
from edl.scheduler.admission import HealthCheckSettings
from edl.scheduler.autoscale import AutoscaleConfig
from edl.scheduler.batching import BatchRule
from edl.scheduler.elastic_values import ElasticConfig, ElasticJob, Pool
from edl.scheduler.no_teacher import Ensemble, Policy
from edl.scheduler.simulator import SpeedChange, StudentGroup
from edl.scheduler.students.saving import SaveSchedule
from edl.scheduler.students.shards import Ranges, RankShard, StaticDeal
from edl.scheduler.students.weights import Cosine, Linear, Steps

JOB: dict[str, Any] = {"name": "a", "min_nodes": 1, "max_nodes": 2}
SIMULATED: dict[str, Any] = {"name": "a", "work_node_s": 10, "min_nodes": 1, "max_nodes": 1}
STUDENT: dict[str, Any] = {"name": "s", "t_s_s": 0.1}


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (AutoscaleConfig, {"min": 3, "max": 2}, "not"),
        (AutoscaleConfig, {"freeze_s": -1.0}, "not"),
        (AutoscaleConfig, {"up_after_s": nan}, "not"),
        (AutoscaleConfig, {"cost_ceiling_per_hour": inf}, "not"),
        (BatchRule, (-1,), "at least 0"),
        (BatchRule, (8, inf), "at least 0"),
        (BatchRule, (8, 0.1, frozenset({9})), "preferred sizes"),
        (ElasticConfig, {"mode": "fifo"}, "'gang'"),
        (ElasticConfig, {"max_load": 0.0}, "max_load"),
        (ElasticConfig, {"freeze_s": nan}, "freeze_s"),
        (ElasticJob, JOB | {"min_nodes": 0}, "1 <= min_nodes"),
        (ElasticJob, JOB | {"nodes": -1}, "0 or more"),
        (ElasticJob, JOB | {"needs": {"cpu": -1.0}}, "'cpu'"),
        (ElasticJob, JOB | {"base": {"cpu": nan}}, "'cpu'"),
        (Ensemble, ({},), "weights"),
        (Ensemble, ({"a": -1.0},), "weights"),
        (Ensemble, ({"a": nan},), "weights"),
        (Ensemble, ({"a": 1.0}, "ignore"), "missing"),
        (Ensemble, ({"a": 1.0}, "wait", -1.0), "after 0 s or more"),
        (HealthCheckSettings, {"every_s": 0.0}, "above 0"),
        (HealthCheckSettings, {"test_every_s": 0.0}, "above 0"),
        (OperatorConfig, {"place_within_s": -1}, "place-within"),
        (Policy, ("panic", 1.0), "policy"),
        (Policy, ("fail", None), "needs"),
        (Policy, ("wait", -1.0), "wait"),
        (Pool.of_slots, (-1,), "capacity of 'slots'"),
        (SaveSchedule, {"every_steps": 0}, "must be positive"),
        (SaveSchedule, {"every_s": 0.0}, "must be positive"),
        (SaveSchedule, {"overhead": 1.0}, "from 0 to below 1"),
        (Linear, (-1, 0), "a weight is"),
        (Cosine, (1, nan), "a weight is"),
        (Linear, (1, 0, 0), "at least 1 step"),
        (Cosine, (1, 0, 5, -1), "0 steps or more"),
        (Steps, ((1, 0), (3, 5)), "2 values need 1 steps"),
        (Steps, ((1, 0.5, 0), (5, 5)), "must ascend"),
        (Steps, ((1, 0), (0,)), "must ascend"),
        (RankShard, (2, 2), "rank 2 of world_size 2"),
        (RankShard, (-1, 2), "rank -1 of world_size 2"),
        (RankShard, {"uneven": "repeat"}, "'keep', 'drop', 'pad'"),
        (SimulatedJob, SIMULATED | {"work_node_s": 0}, "work_node_s"),
        (SimulatedJob, SIMULATED | {"stop_s": 0}, "stop_s"),
        (SimulatedJob, SIMULATED | {"leave_s": -1}, "times must be"),
        (SimulatedPool, {"capacity": {"slots": 1}, "decide_every_s": 0}, "decide_every_s"),
        (StaticDeal, (Ranges(), 0, 0, 1), "cannot be dealt"),
        (StaticDeal, (Ranges(), 4, 2, 2), "cannot be dealt"),
        (StudentGroup, STUDENT | {"name": "a/b"}, "without '/'"),
        (StudentGroup, STUDENT | {"lower": 16.0}, "lower < upper"),
        (StudentGroup, STUDENT | {"teachers_min": 5, "teachers_max": 4}, "teachers_min <= "),
        (
            StudentGroup,
            STUDENT | {"join_s": 5.0, "leave_s": 4.0},
            "join_s < leave_s, not 5",
        ),
        (
            StudentGroup,
            STUDENT | {"changes": (SpeedChange(2, 1), SpeedChange(1, 1))},
            "in the order",
        ),
        (ReplicaBounds, (None, 3, 2), "least <= most"),
    ],
)
def test_invalid_settings_are_refused(
    make: Callable[..., object], values: Any, message: str
) -> None:
    with pytest.raises((ValueError, UsageError), match=message):
        make(**values) if isinstance(values, dict) else make(*values)
