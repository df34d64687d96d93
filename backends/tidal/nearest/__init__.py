"""The texts of a file that are nearest to an embedding, as a step of an ensemble. May import `tidal.serving`."""
