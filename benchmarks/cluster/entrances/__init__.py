"""Several entrances of a cluster, simulated: what each must know of the requests of the others."""
