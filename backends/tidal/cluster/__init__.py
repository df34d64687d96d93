"""A cluster of nodes: an agent beside each node's server and the controller, as Ray actors that no query passes.

Commands import it; it imports `tidal.controller` and the server. Functions import Ray, because only this package needs
it.
"""
