"""The dashboard of Grafana, as code: `python -m deploy.grafana` writes `dashboards/tidal.json`."""
