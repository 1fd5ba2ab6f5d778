"""A cluster of one kind of room in virtual time: jobs, their ledgers and pods; it may crash."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.jobs.decisions import decide_pods
from edl.deploy.operator.jobs.ledger import DesiredJob, JobActions, NodePod, ObservedJob, PodLedger
from edl.scheduler.elastic_values import ElasticConfig, Pool

#: Everything at once: nothing is frozen, nobody waits.
AT_ONCE = OperatorConfig(elastic=ElasticConfig(freeze_s=0), place_within_s=60, lost_pause_s=0)


class Killed(Exception):
    """Who decides died between two calls."""


@dataclass
class PodWorld:
    """See the module.

    Attributes:
        room: of the kind "cpu", of which each node of each job takes 1 unless it says so.
        placeable: so many pods of one job can be placed at all; None: as many as there is room.
    """

    room: float
    config: OperatorConfig = AT_ONCE
    reserved: float = 0.0
    placeable: int | None = None
    now: float = 1000.0
    wanted: dict[str, DesiredJob] = field(default_factory=dict)
    ledgers: dict[str, PodLedger] = field(default_factory=dict)
    pods: dict[str, dict[int, NodePod]] = field(default_factory=dict)
    made: dict[str, list[int]] = field(default_factory=dict)
    orders: dict[str, JobActions] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    calls: int = 0

    def submit(self, name: str, least: int, most: int, **more: object) -> None:
        needs = more.pop("needs", {"cpu": 1.0})
        self.wanted[name] = DesiredJob(
            least,
            most,
            needs,  # type: ignore[arg-type]
            submitted_s=self.now + len(self.wanted),
            **more,  # type: ignore[arg-type]
        )
        self.ledgers[name] = PodLedger()
        self.pods[name], self.made[name] = {}, []

    def ask(self, name: str, **more: object) -> None:
        self.wanted[name] = replace(self.wanted[name], **more)  # type: ignore[arg-type]

    @property
    def held(self) -> float:
        """What is no room for jobs: others' pods, and those of jobs whose spec is wrong."""
        return self.reserved + sum(
            wanted.needs["cpu"]
            for name, wanted in self.wanted.items()
            for pod in self.pods[name].values()
            if wanted.spec_error and not pod.ended and pod.machine == "counted"
        )

    def decide(self) -> tuple[JobActions, ...]:
        jobs = []
        for name, wanted in self.wanted.items():
            needs = {} if wanted.spec_error else wanted.needs  # of such a spec they are not known
            pods = tuple(self.pods[name].values())
            jobs.append(ObservedJob(name, replace(wanted, needs=needs), self.ledgers[name], pods))
        pool = Pool({"cpu": self.room}, {"cpu": self.held})
        return decide_pods(pool, jobs, self.now, self.config)

    def reconcile(self, kill_at: int | None = None) -> None:
        """Look, decide, and carry it out, call by call; die before the call of number `kill_at`."""
        for one in self.decide():
            pods = self.pods[one.job]
            self.orders[one.job] = one
            if one.ledger != self.ledgers[one.job]:
                self._call(kill_at)
                self.ledgers[one.job] = one.ledger
            for number in one.leave:
                self._call(kill_at)
                pods[number] = replace(pods[number], deleting=True)
            for number in one.forget:
                self._call(kill_at)
                del pods[number]
            for number in one.start:
                self._call(kill_at)
                assert number not in self.made[one.job], "a number is used twice"
                self.made[one.job].append(number)
                pods[number] = NodePod(number)
            self.said += [f"{one.job}: {told.reason}" for told in one.events]

    def _call(self, kill_at: int | None) -> None:
        self.calls += 1
        if self.calls == kill_at:
            raise Killed

    def live(self, seconds: float = 1.0) -> None:
        """The cluster does its part: those that were told to leave go, others come up."""
        self.now += seconds
        for pods in self.pods.values():
            for number in [n for n, pod in pods.items() if pod.deleting]:
                del pods[number]
            placed = sum(pod.stays and pod.machine == "counted" for pod in pods.values())
            for number, pod in sorted(pods.items()):
                if not pod.stays or pod.machine == "counted":
                    continue
                if self.placeable is None or placed < self.placeable:
                    placed += 1
                    pods[number] = NodePod(number, machine="counted", runs=True, ready=True)
                elif pod.unplaced_since_s is None:
                    waits = {"unplaced_since_s": self.now, "message": "0/3 nodes are available"}
                    pods[number] = replace(pod, **waits)  # type: ignore[arg-type]

    def rest(self, seconds: float = 1.0) -> None:
        """Until nothing changes any more, also when `seconds` have passed."""
        quiet = 0
        for _ in range(60):
            calls = self.calls
            self.reconcile()
            pods = {name: dict(pods) for name, pods in self.pods.items()}
            self.live(seconds)
            quiet = quiet + 1 if self.calls == calls and pods == self.pods else 0
            if quiet == 2:
                return
        raise AssertionError(f"still changing: {self.orders}")

    def end(self, name: str, number: int, code: int | None, said: str = "") -> None:
        """A node's program ends; `code` None: the cluster ended it."""
        self.pods[name][number] = replace(
            self.pods[name][number], ended=True, runs=False, ready=False, code=code, message=said
        )

    def staying(self, name: str) -> list[int]:
        return sorted(n for n, pod in self.pods[name].items() if pod.stays)

    def counts(self) -> dict[str, int]:
        return {name: len(self.staying(name)) for name in self.wanted}

    def state(self, name: str) -> str:
        return self.orders[name].state


def world_of(
    room: float, *jobs: tuple[str, int, int], config: OperatorConfig = AT_ONCE
) -> PodWorld:
    """One with these jobs: names, fewest and most nodes."""
    world = PodWorld(room, config)
    for name, least, most in jobs:
        world.submit(name, least, most)
    return world
