"""Token adaptation: one vision transformer that adds or merges tokens a batch, by deadline, utility and load."""
