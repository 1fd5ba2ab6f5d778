"""Elastic jobs on a Kubernetes cluster: resources of kind DistillJob, which the operator runs."""
