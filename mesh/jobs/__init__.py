"""Elastic jobs that share a fleet of slots: what is submitted, and who runs it.

`spec.py` is a job's file, `runner.py` runs the jobs of a queue on this machine, `cli.py` and
`fleet_cli.py` are what operators type. Who gets how many nodes is `scheduler/elastic.py`.
"""
