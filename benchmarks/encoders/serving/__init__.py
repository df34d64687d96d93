"""The compared servers. Each file runs as a program in an environment of peers, not in Tidal's."""
