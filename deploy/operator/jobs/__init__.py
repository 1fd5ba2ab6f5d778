"""DistillJobs of a cluster: elastic trainings, and other programs, whose nodes are pods.

`DistillJobs.turn` looks at everything, has `scheduler/job_pods/` decide about all jobs at once, and
carries that out. It remembers nothing that has to outlive it: that stands in each job's status.
"""

from __future__ import annotations

from .turning import DistillJobs

__all__ = ["DistillJobs"]
