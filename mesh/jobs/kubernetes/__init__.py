"""Elastic jobs on a Kubernetes cluster: DistillJob resources, which the operator runs."""
