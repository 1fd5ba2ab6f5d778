"""Parts of `edl bench accuracy`: tasks, and the ways to train their students."""
