"""Benchmarks of systems that work together, against each system alone."""
