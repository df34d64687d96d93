"""LoRA tasks of a decoder: as they are stored, and as rows of one pass use them beside each other."""
