"""What runs Tidal beside its code: images, Prometheus, Grafana, Kubernetes."""
