"""One student process of a training: `python -m edl.student.rank LINK_FD`, started by a supervisor.

| module | contents |
|---|---|
| `__main__.py` | the process: receives its order, trains, reports how it ended |
| `starting.py` | everything before the first step: job, model, optimizer, checkpoint |
| `loop.py` | Algorithm 2 of the paper over all ranks, step by step |
| `prefetcher.py` | a thread that reads the local batches ahead; rows of this rank in each step |
| `learner.py` | one step of the optimizer; scaling of the learning rate |
| `reporting.py` | reports to the supervisor: steps, waits, snapshots; the log of sample ids |

The differences of Paddle and PyTorch are in `student/frameworks/`. Importing this package imports
no framework; a rank imports its own when it starts.
"""
