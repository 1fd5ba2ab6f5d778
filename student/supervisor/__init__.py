"""One supervisor per node: starts the ranks, keeps their snapshots, forms worlds with others.

| module | holds |
|---|---|
| `agent.py` | the loop of a node, and what it works with |
| `rendezvous.py` | the session of a node at the job board, and the leader there |
| `workers.py` | the ranks of one generation on this node, and how it goes |
| `checkpoints.py` | snapshots, checkpoints, and which one is whole |
| `ui.py` | what people are shown, here and by `edl status` |

The rules of worlds are in `scheduler/students/`. Importing this package is light.
"""
