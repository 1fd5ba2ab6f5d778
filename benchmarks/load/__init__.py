"""Simulated members of a mesh, many in one process, with the real protocols."""
