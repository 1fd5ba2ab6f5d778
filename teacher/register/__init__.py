"""A process beside a server that knows nothing of us: registers it as a teacher, and watches it.

`config.py` says which, `dialect.py` finds how it is asked, `trial.py` judges what it answers,
`voucher.py` proves to managers who has registered it, `standing.py` is its place in the registry,
`sidecar.py` its life, `cli.py` the command `edl teacher register`. When it looks at the server, and
what it concludes, is decided by `scheduler.admission`.
"""
