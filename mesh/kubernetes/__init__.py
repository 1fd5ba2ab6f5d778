"""Client of the Kubernetes API, and the kinds and labels of the mesh's objects."""
