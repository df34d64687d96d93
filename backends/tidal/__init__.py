"""The library behind Tidal's Triton backends: policies, engines and the contracts between them."""

__version__ = "0.1.0"
