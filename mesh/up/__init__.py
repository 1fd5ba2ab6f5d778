"""A whole mesh of processes of this machine from one file: `edl up` and `edl down`."""
