"""Measures what only a GPU can show, in one short visit: each step is a process with a time limit of its own.

What starts and watches the steps imports the standard library alone, so that it runs on a machine that lacks libraries;
each step imports what it needs, and `steps` names it.
"""
