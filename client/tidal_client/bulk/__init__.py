"""Embedding of files: texts are read in windows, sent as requests, and written where an interrupted run can continue.

Imported by `tidal embed`.
"""
