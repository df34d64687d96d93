"""The engine loop: generations in slots share every decode step; the service runs it, nothing in it knows Triton."""
