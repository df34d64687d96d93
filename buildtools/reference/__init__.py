"""Reference pages that follow from the code: `python -m buildtools.reference [--check]`.

Reads the public surface of tidal, tidal_builders and tidal_client; nothing imports it but the tests of the docs.
"""
