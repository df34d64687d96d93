"""The compiled core of the request path: reads texts and builds answers in C++; imports only what compiles it.

Its callers do the same in Python where it is not compiled, or where it returns nothing for their arguments.
"""

from tidal.answers.library import class_scores, tensors, texts

__all__ = ["class_scores", "tensors", "texts"]
