"""A cluster of nodes: an agent beside each node's server and one controller, as Ray actors that no query passes.

Commands import it; it imports the controller of one host, the server and the scheduling policies. Functions import Ray,
because only this package needs it.
"""
