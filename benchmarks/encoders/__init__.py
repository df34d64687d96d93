"""Encoders for embeddings and reranking: Tidal against other servers, and equality with the source models."""
