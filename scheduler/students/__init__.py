"""The rules of a training over several ranks: worlds, failures, checkpoints, rows, and weights."""
