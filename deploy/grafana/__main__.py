"""`python -m deploy.grafana`: write dashboards/tidal.json."""

from deploy.grafana.dashboard import TARGET, text

TARGET.write_text(text(), encoding="utf-8")
