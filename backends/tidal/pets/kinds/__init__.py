"""Kinds of fine-tuning: each module here with a `KIND` defines how the parameters of one kind are stored as a file.

A kind maps the stored tensors of a layer to the unified form (`tidal.pets.terms`) and back. What every kind may store
besides is read in one place, `tidal.pets.kinds.stored`: the classifier, differences of biases, and normalisations.
Imported by `tasks`, `loading`, and builders; never by engines or policies.
"""
