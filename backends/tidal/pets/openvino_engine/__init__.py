"""The OpenVINO engine of PetS: an encoder's graph on a CPU, whose C++ operations look up each row's task (PetS §3, §4).

Imports `pets/engine` (the contract) and `pets/terms`; imported by `pets/opening`, builders and tests.
"""
