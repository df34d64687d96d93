"""Arlo on simulated clusters, and the fidelity of the simulator."""
