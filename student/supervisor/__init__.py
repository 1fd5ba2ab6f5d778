"""One supervisor per node: starts the ranks, keeps their snapshots, forms worlds with others.

| module | holds |
|---|---|
| `node.py` | the loop of a node; `dependencies.py`: what it works with |
| `rendezvous.py`, `rendezvous_leader.py` | the node at the job board, and as the leader there |
| `workers.py`, `worker_run.py` | the ranks of one generation on this node, and how it goes |
| `checkpoints.py` | snapshots, checkpoints, and which one is whole |
| `launch.py` | what Kubernetes and other launchers say of the node |
| `reporter.py`, `dry_run.py` | what people are shown; what a training would do |

The rules of worlds are in `scheduler/students/`. Importing this package is light.
"""
