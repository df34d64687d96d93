"""The APIs that the gateway serves: one module per API, one entry of `tidal_gateway.api.routes` per route."""
