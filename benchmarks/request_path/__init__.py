"""Cost of the request path: requests per second and CPU time where the engine costs next to nothing."""
