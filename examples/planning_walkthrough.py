# %% [markdown]
# # Planning: how many teachers, at which cost, and what if they die
#
# This file starts no processes. It computes a plan, and simulates the planned mesh in virtual time,
# with the rules of live meshes. Open it as a notebook, or run it; it needs only `edl-dist`:
#
#     python examples/planning_walkthrough.py

# %%
"""A walk-through of planning: devices, rates, a plan, variants, the same mesh with faults."""

from __future__ import annotations

import random
from dataclasses import replace

from edl.mesh.plan.scenario import scenario_of
from edl.scheduler.cluster import Cluster, DeviceKind, DeviceLink, DeviceRate, Distillation
from edl.scheduler.planner import plan
from edl.scheduler.simulator import ScenarioFault, simulate

# %% [markdown]
# ## Machines and rates
#
# There are four machines for training. Spot machines come and go, so they can only be teachers.
# `edl profile` measures the rates of your devices. Here the rates are those of a ResNet50 on a
# V100, and of its teacher, a ResNet101, on a P4.

# %%
cluster = Cluster(
    (
        DeviceKind("v100", 4, 2.48, link=DeviceLink(3.1e9, 50e-6), roles=("student",)),
        DeviceKind("p4", 40, 0.22, link=DeviceLink(1.25e9, 100e-6, jitter=0.2), tenure="spot"),
    )
)
job = Distillation(
    name="resnet50",
    samples=1_281_167,
    epochs=90,
    students=4,
    batch=(32,),
    sample_bytes=224 * 224 * 3,
    label_bytes=4000,
    student={"v100": DeviceRate(samples_per_s=340, jitter=0.03)},
    teacher={
        "v100": DeviceRate(samples_per_s=900),
        "p4": DeviceRate(samples_per_s=72, jitter=0.05),
    },
)

# %% [markdown]
# ## The plan
#
# The planner predicts the speed of many fleets, with losses such as jitter. Of the fleets that are
# about as fast as the fastest, it takes the cheapest. For comparison, the paper's ratio
# n = ceil(t_t / t_s) is printed.

# %%
planned = plan(cluster, job)
assert planned.mesh is not None
assert planned.prediction is not None
teachers = planned.mesh.teachers
print(f"planned: {teachers} teachers for {job.students} students")
print(f"the ratio alone: {planned.needed} teachers for each student")
for one in planned.estimates:
    if not one.why_not:
        hours = one.total_s / 3600
        print(
            f"{one.method:<12}{one.samples_per_s:8,.0f} samples/s {hours:6.1f} h {one.cost:8.2f} $"
        )
print("; ".join(planned.verdict.reasons))

# %% [markdown]
# ## Other numbers of teachers
#
# Below the ratio the students wait for labels. Where the curve is flat, further teachers only cost.

# %%
for count in (8, 12, 16, 20, 24, 28):
    variant = plan(cluster, job, teachers=count)
    assert variant.prediction is not None
    bar = "#" * round(variant.prediction.samples_per_s / 25)
    print(f"{count:3} teachers {variant.prediction.samples_per_s:8,.0f} samples/s {bar}")

# %% [markdown]
# ## The same mesh, simulated
#
# The simulator applies the reader's rules to each batch: which teacher gets it, when a teacher is
# late, what is sent again. Without faults its result is close to the plan.

# %%
good_day = replace(
    scenario_of(cluster, job, planned.mesh, planned.prediction), batches=300, duration_s=None
)
calm = simulate(good_day, random.Random)
print(
    f"planned {planned.prediction.samples_per_s:,.0f},"
    f" simulated {calm.samples_per_s:,.0f} samples/s"
)

# %% [markdown]
# ## A bad day
#
# After five seconds a third of the teachers crash and are not replaced. Readers send their requests
# to the others at once.

# %%
third = teachers // 3
bad_day = replace(good_day, faults=(ScenarioFault(5.0, "p4", "crash", count=third),))
rough = simulate(bad_day, random.Random)
resends = sum(student.resends for student in rough.students)
starved = sum(student.starved_s for student in rough.students)
print(f"without {third} of {teachers}: {rough.samples_per_s:,.0f} samples/s")
print(f"{resends} requests were sent again; students waited {starved:.1f} s in total")
assert all(a.batches == b.batches for a, b in zip(calm.students, rough.students, strict=True))
