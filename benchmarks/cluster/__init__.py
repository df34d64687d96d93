"""Clusters: a hop and the loss of a node on real servers, and Arlo on emulated devices and in simulation."""
