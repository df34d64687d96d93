"""What every request passes before and after its API: limits, keys, request ids, metrics, the access log, TLS."""
