"""A client of the Kubernetes API, and the names of the objects that the mesh keeps there."""
