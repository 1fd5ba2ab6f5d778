"""`edl agent`: lends this machine to the mesh; the coordinator decides which teacher it runs."""
