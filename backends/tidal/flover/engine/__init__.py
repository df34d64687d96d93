"""Iterations of generations that share every decode step: admit, prefill, decode, free; used by the service only."""
