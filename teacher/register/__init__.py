"""A process beside a server that knows nothing of us: registers it as a teacher, and watches it.

`config.py` says which, `trial.py` judges what it answers, `standing.py` is its place in the
registry, where it proves to managers who has registered it, `sidecar.py` its life, which begins
with finding how it is asked, `cli.py` the command `edl teacher register`. When it looks at the
server, and what it concludes, is decided by `scheduler.admission`.
"""
