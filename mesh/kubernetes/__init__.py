"""Kubernetes as the mesh sees it: a thin client, and the names of what we keep there."""
