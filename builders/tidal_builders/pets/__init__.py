"""Builds PetS models: exports, verifies and profiles a frozen encoder; `importing` and `training` make its tasks.

Imports `tidal.pets` and the builders' shared parts; imported by the registry of kinds, commands, benchmarks and tests.
"""
