"""The quickstart (`make demo`): train, build, serve and query one model per backend. Nothing in `tidal` imports it."""
