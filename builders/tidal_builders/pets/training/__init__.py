"""Trains a small task of any kind on a frozen Hugging Face encoder, on a CPU in minutes.

Imported by `tidal tasks train`, the demo and benchmarks.
"""
