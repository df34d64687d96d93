"""Live figures of models from the metrics of servers: what `tidal top` and the gateway's console show."""
