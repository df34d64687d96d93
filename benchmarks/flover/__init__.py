"""Flover's comparison: generations that share every step, against instances side by side, batches, and public peers."""
