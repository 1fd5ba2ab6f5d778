"""Elastic jobs that share the slots of a machine, one node in each, or a Kubernetes cluster.

`spec.py` defines the file of a job, `runner.py` runs the jobs of a queue on this machine, and
`backend.py` is the interface of commands to a queue or a cluster. `scheduler/elastic.py` decides
the number of nodes.
"""
