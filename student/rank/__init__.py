"""One student process of a training: `python -m edl.student.rank LINK_FD`, started by a supervisor.

| file | what it does |
|---|---|
| `__main__.py` | the process: takes its order, trains, says how it ended |
| `starting.py` | job, model, optimizer, checkpoint: all that is there before the first step |
| `loop.py` | Algorithm 2 of the paper over all ranks, step by step |
| `intake.py` | the local batches, taken in a thread of their own |
| `shares.py` | how many rows this rank reads for a step, as far as all have agreed |
| `collective.py` | what ranks tell each other by `paddle.distributed`; nothing at world 1 |
| `gradients.py` | forward, backward and the step of the optimizer, in pieces that fit |
| `precision.py` | mixed precision |
| `scaling.py` | learning rate and `on_scale` when the world has changed |
| `saving.py` | what of all ranks goes into a snapshot |
| `evaluation.py` | the job's metrics over its evaluation data, divided among ranks |
| `telling.py` | what the supervisor hears of each step, and the log of ids |
| `pulse.py` | tells the supervisor what the rank waits for, while it waits |

Importing it is light; Paddle is loaded when a rank starts.
"""
