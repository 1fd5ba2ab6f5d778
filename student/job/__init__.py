"""The job: a Python file with the user's functions, loaded and checked."""
