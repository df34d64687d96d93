"""Real servers, fronts and schedulers over devices that only wait: `python -m benchmarks.cluster.emulated`."""
