"""Serves a model by a Paddle Serving pipeline server that this teacher configures and runs.

The server needs an environment of its own, because its packages conflict with ours:
`environment.py` creates it, and `describe.py` and `service.py` run in it. `engine.py` runs in the
process of `edl teacher serve`: it writes the configuration, starts the server, registers it and
ends it.
"""
