"""Builds text classifiers for the `arlo` backend. The cascade builder (`tabi`) imports it, no other kind does."""
