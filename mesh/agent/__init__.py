"""`edl agent`: lends this machine to the mesh; the coordinator says which teacher runs on it."""
