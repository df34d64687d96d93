"""Decoder models: their architecture, weights and passes over slots; may import `memory` and `native`."""
