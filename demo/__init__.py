"""The quickstart: an intent classifier from real weights, built, served by a real Triton, asked over HTTP and gRPC."""
