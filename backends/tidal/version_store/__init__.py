"""Versions of models in a store that machines share, by the hash of their content: published, fetched, verified.

The commands import it; it imports the catalog and what is below it, and no server.
"""
