"""The sidecar of a foreign server: registers it as a teacher and watches it.

`config.py` has its settings, `server_check.py` tests the server's answers, `sidecar.py` registers
the server and attests it to managers, `cli.py` is the command `edl teacher register`.
`scheduler.admission` decides when the server is probed, and what follows.
"""
