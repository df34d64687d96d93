"""Cost of a hop to another node, and the loss of a node under load, with real servers on one machine."""
