"""API keys: their form, the file that has their hashes, and what each may use."""
