"""The base of all other folders: errors, logs, metrics, signals, exits, and child processes."""
