"""DistillJobs of a cluster: elastic trainings, and other programs, whose nodes are pods.

`turning.DistillJobs` looks at everything, has `orders.decide_pods` decide about all jobs at once,
and carries that out. It remembers nothing that has to outlive it: that stands in each job's status.
"""
