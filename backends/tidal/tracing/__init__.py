"""Spans of requests in the models' processes, exported over OTLP; off unless the environment has an endpoint.

OpenTelemetry's packages are imported only while it is on. The boundary and systems that call other models import it.
"""
