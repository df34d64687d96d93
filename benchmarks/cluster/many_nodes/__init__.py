"""A simulated cluster of 1,000 devices on 125 nodes: plans while nodes are lost and join, and several entrances."""
