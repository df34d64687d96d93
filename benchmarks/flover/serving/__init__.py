"""Baselines of Flover as decoupled models of Triton's Python backend; imported by their `model.py` and tests."""
