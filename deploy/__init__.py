"""Files that deploy and monitor Tidal: images, Prometheus, Grafana, Kubernetes."""
