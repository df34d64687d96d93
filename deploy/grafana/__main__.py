"""`python -m deploy.grafana`: write dashboards/tidal.json anew."""

from deploy.grafana.dashboard import TARGET, text

TARGET.write_text(text(), encoding="utf-8")
