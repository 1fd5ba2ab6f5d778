# %% [markdown]
# # Trainings that share eight slots
#
# Three jobs share a pool of eight slots. In the first run, each job waits until all its nodes are
# free, as with most schedulers. In the second one, jobs grow and shrink between a minimum and a
# maximum, as with `edl agent jobs` and the operator. In the third one, a web service also wants
# some slots back. The rule is that of `edl agent jobs`; only the time is virtual. Open this file as
# a notebook, or run it; it needs only `edl-dist`:
#
#     python examples/sharing_walkthrough.py

# %%
"""A walk-through of elastic jobs: one pool, three jobs, gang and elastic, and a service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from edl.benchmarks.elastic_simulation import (
    ResourceReservation,
    SimulatedJob,
    SimulatedPool,
    Simulation,
    simulate,
)
from edl.scheduler.elastic_values import SLOTS, ElasticConfig

# %% [markdown]
# ## The jobs
#
# Work is in seconds of one node. A node takes five seconds to start, and the job pauses for three
# while it forms a new world: growing is not free.

# %%
a_job = partial(SimulatedJob, start_s=5.0, join_s=5.0, reform_s=3.0)
jobs = [
    a_job("large", 2400, min_nodes=2, max_nodes=8),
    a_job("middle", 1200, min_nodes=2, max_nodes=6, submitted_s=60),
    a_job("small", 300, min_nodes=1, max_nodes=2, submitted_s=90),
]
pool = SimulatedPool({SLOTS: 8}, config=ElasticConfig(freeze_s=30.0))
gang = replace(pool, config=ElasticConfig(mode="gang"))


def show(title: str, result: Simulation, jobs: Sequence[SimulatedJob], every_s: int = 20) -> None:
    """Print a line for each job: working nodes every `every_s` seconds, waiting time and end."""
    print(title)
    until_s = max(run.ended_s or 0.0 for run in result.runs)
    for job, run in zip(jobs, result.runs, strict=True):
        line = ""
        for at_s in range(0, int(until_s), every_s):
            past = [moment for moment in result.moments if moment.at_s <= at_s]
            line += str(past[-1].working.get(job.name, 0) or ".") if past else "."
        began_s, ended_s = run.started_s or 0.0, run.ended_s or 0.0
        waited_s = began_s - job.submitted_s
        print(f"  {job.name:<7}{line}  waited {waited_s:4.0f} s, ended at {ended_s:4.0f} s")


# %% [markdown]
# ## All or nothing
#
# The large job holds all eight slots; the others wait until it ends.

# %%
rigid = simulate(gang, jobs)
show("gang", rigid, jobs)

# %% [markdown]
# ## Elastic
#
# A new job starts at once with its least number of nodes, which the large job releases. When nodes
# are free again, the job with the smallest share of its range grows first. The last job ends no
# sooner, because all slots were busy without elasticity, too: elasticity saves waiting time.

# %%
elastic = simulate(pool, jobs)
show("elastic", elastic, jobs)
waited = [
    sum((run.started_s or 0.0) - run.job.submitted_s for run in result.runs) / len(jobs)
    for result in (rigid, elastic)
]
print(f"mean waiting time: {waited[0]:.0f} s all or nothing, {waited[1]:.0f} s elastic")

# %% [markdown]
# ## A service wants slots back
#
# Two minutes after the start, the service reserves four slots for two minutes. The jobs release
# nodes, one job all its nodes, and grow again afterwards.

# %%
service = (ResourceReservation(120.0, {SLOTS: 4}), ResourceReservation(240.0, {SLOTS: 0}))
shared = simulate(replace(pool, reservations=service), jobs)
show("elastic, beside a service", shared, jobs)
busy = [moment for moment in shared.moments if 125 <= moment.at_s < 240]
most_nodes = max(sum(moment.working.values()) for moment in busy)
print(f"while it holds 4 of 8 slots, jobs have {most_nodes} at most")
