"""Elastic jobs that share the slots of a machine, or a Kubernetes cluster.

`spec.py` reads a job's file, `runner.py` runs the jobs of a queue on this machine, `backend.py` is
what commands need from a queue or a cluster. `scheduler/elastic.py` decides the number of nodes.
"""
