"""Arlo: encoders for inputs of varying length, with several runtimes per model by `max_length` (Tan et al., ICPP '24).

Imported by the `arlo` backend, Tabi's cascades, the controller, the simulator and the builders.
"""
