"""Arlo: encoders for varying input length, several runtimes of one model by `max_length` (Tan et al., ICPP '24)."""
