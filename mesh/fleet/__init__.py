"""Fleets: what starts and stops processes of the mesh on one machine."""
