"""What every folder depends on: errors, logs, metrics, signals and exits, and child processes."""
