"""LoRA tasks of a decoder: stored folders, and rows of one pass with different tasks; imports `tidal.tasks`."""
