"""Overhead of serving: latency over tokenise + infer in process, throughput against a bare Python-backend model."""
