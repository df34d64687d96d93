"""Lines of a config.pbtxt."""

from __future__ import annotations


def parameter(name: str, value: object) -> str:
    """A parameter as config.pbtxt has it."""
    return f'\nparameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
