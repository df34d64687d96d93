"""Token adaptation (OTAS): a vision transformer that adds or merges tokens per batch, by deadline, utility and load.

`backends/otas/model.py`, builders and the simulator import it.
"""
