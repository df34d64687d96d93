"""A Triton model repository on disk: model folders, configs, allocations, manifests, and the relations between models.

It reads the systems' manifests. Builders, the server, the controller, commands and backends import it; it imports no
server.
"""
