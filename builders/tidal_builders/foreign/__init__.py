"""Reads folders that other tools saved as JSON and safetensors, never as pickles. All builders may import it."""
