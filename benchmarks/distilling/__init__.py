"""What `edl bench accuracy` is made of: tasks, ways to train their students, statistics."""
