"""DistillJobs of a cluster: elastic trainings, and other programs, with a pod for each node.

`reconciler.DistillJobReconciler` reads everything, `decisions.decide_pods` decides about all jobs
at once, and `actions.apply_actions` carries that out. State that must outlive an operator is in the
status of each job.
"""
