"""An emulated Kubernetes API server: real HTTP, without controllers, scheduler or kubelets."""
