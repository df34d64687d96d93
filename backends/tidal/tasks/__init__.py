"""Tasks stored as folders of a model, and a cache of the tasks in memory, shared by systems that serve many tasks.

Systems, builders and commands import it; it imports no system.
"""
