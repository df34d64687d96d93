"""Client library for Tidal's models on Triton."""
