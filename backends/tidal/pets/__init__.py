"""PetS: queries of many fine-tuned tasks, of different kinds of fine-tuning, share one pass of a frozen encoder.

`terms` is the unified form of a task; engines run it, `kinds` and `tasks` store it, `policies` batch queries, `service`
serves them. Imported by the adapter `backends/pets/model.py`, builders, and systems above (Tabi).
"""
