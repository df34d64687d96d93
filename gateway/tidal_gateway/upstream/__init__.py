"""Calls to the servers behind the gateway: choice of a server, health, retries, bounded queues."""
