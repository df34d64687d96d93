"""The contract of PetS engines: what an engine offers, how an encoder is described, and which inputs fit it.

Imports no engine, no engine library and no kind of fine-tuning; every engine package imports it.
"""
