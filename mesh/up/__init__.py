"""`edl up` and `edl down`: a mesh of processes on this machine, described by one file."""
