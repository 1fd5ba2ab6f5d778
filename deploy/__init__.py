"""How the mesh is run elsewhere: files for containers, systemd and Kubernetes, and the operator."""
