"""Benchmark of Flover against concurrent instances, static batches and public continuous batching; never imported."""
