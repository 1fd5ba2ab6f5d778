"""The supervisor of a node: starts its ranks, keeps their snapshots, forms worlds with others.

| module | contents |
|---|---|
| `agent.py` | the supervisor and its loop |
| `rendezvous.py` | the session of a node at the job board, and the leader |
| `workers.py` | the ranks of one generation on this node |
| `checkpoints.py` | snapshots, checkpoints, and their verification |
| `ui.py` | output for users, here and in `edl status` |

The rules of worlds are in `scheduler/students/`. Importing this package imports none of
these modules.
"""
