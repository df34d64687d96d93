"""Folders that other tools saved, read as data: JSON and safetensors, never pickles."""
