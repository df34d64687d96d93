"""Servers, models and requests that tests, benchmarks and the reliability suite share; imports none of them."""
