"""Elastic jobs of a Kubernetes cluster, as `edl job` asks for them: resources of kind DistillJob.

The operator (`deploy/operator/`) makes them true; here they are only written, read and shown.
"""
