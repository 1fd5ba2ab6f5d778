"""Deployment files for containers, systemd and Kubernetes, and the operator."""
