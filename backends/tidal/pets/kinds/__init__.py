"""Kinds of fine-tuning: each module here that has a `KIND` says how one kind's parameters are stored as a file.

A kind maps the stored tensors of a layer to the unified form (`tidal.pets.terms`) and back. What every kind may carry
beside its own is read in one place, `tidal.pets.kinds.stored`: the classifier, differences of biases, and
normalisations.
"""
