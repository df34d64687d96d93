"""CPU time of Tidal's clients per call, compared with plain tritonclient against a server that answers at once."""
