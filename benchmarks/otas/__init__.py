"""Benchmark of OTAS: the utility that token adaptation earns, and how close its plans are to the optimum."""
