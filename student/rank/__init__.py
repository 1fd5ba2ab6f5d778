"""One student process of a training: `python -m edl.student.rank LINK_FD`, started by a supervisor.

| file | what it does |
|---|---|
| `__main__.py` | the process: takes its order, trains, says how it ended |
| `starting.py` | job, model, optimizer, checkpoint: all that is there before the first step |
| `loop.py` | Algorithm 2 of the paper over all ranks, step by step |
| `intake.py` | the local batches, taken in a thread of their own; how many rows each has |
| `collective.py` | what ranks tell each other by `paddle.distributed`; nothing at world 1 |
| `learner.py` | one step of the optimizer, mixed precision, the learning rate of another world |
| `reporting.py` | what the supervisor gets: each step and wait, snapshots; the log of ids |

Importing it is light; Paddle is loaded when a rank starts.
"""
