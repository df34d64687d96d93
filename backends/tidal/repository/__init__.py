"""A Triton model repository on disk: entries, configs, allocations, manifests, and the relations between models.

Reads the systems' manifests; builders, the server, the controller and the commands import it.
"""
