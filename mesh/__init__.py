"""Whole meshes on one machine: the local mesh, and the demo that shows one at work."""
