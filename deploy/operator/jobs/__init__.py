"""DistillJobs of a cluster: elastic trainings, and other programs, with a pod for each node.

`reconciler.DistillJobReconciler` reads everything, lets `decisions.decide_pods` decide about all
jobs at once, and carries out the decisions. State that must outlive an operator is in the status of
each job.
"""
