"""Simulated members of a mesh, many in one process, over the real protocols."""
