"""Parts of `edl bench accuracy`: tasks, ways to train their students, statistics."""
