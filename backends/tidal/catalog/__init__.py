"""What the models of a repository are and how they are related: manifests of every kind, and the model graph.

Above the systems, whose manifests it reads; builders, the server, the controller and the commands import it.
"""
