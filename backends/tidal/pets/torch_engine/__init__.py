"""The torch engine of PetS: shared products over the whole batch, and the terms of many tasks at once, on CPU or GPU.

Imports `pets/engine` (the contract), `pets/terms` and the pure stream policy; `tensorrt_engine` builds on its banks.
"""
