"""Tasks as folders beside a model, and which of them are in memory: what systems that serve many tasks share."""
