"""One stateless front process for any number of Tidal servers: the OpenAI API, keys, TLS, retries.

Nothing imports this package but the commands `tidal gateway` and `tidal keys`, tests and benchmarks. It imports
`tidal_client` and of `tidal` only errors, options and the access log.
"""
