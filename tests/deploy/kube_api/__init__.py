"""An emulator of Kubernetes' API server: real HTTP on the loopback, strict where we depend on it.

What it does as a real one does: `resourceVersion` and its conflicts, `generation`, subresources
status and scale, merge patches, server-side apply with owners of fields, schemas of definitions
(defaults, pruning, refusals with a server's words), rules of the definitions, label and field
selectors, pages, watches, graceful deletion of pods, finalizers, leases, events, logs, discovery.
There are no controllers, no scheduler, no kubelet: a test plays them, as it has to with a real API
server alone.
"""
