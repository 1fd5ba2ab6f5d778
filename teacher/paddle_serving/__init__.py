"""A model served by a Paddle Serving pipeline server, which this teacher configures and keeps.

The server runs in an environment of its own, as its packages cannot stand beside ours:
`environment.py` makes it, `describe.py` and `service.py` are the programs that run in it. On our
side, `configuration.py` writes what the server reads, and `engine.py` starts it, registers it and
ends it.
"""
