"""The TensorRT engine of PetS: one plan for all tasks with dense terms, whose banks of terms stay on the GPU.

Imports `pets/engine` (the contract), `pets/terms`, and the banks and operators of `torch_engine`.
"""
