"""A base's tasks as they are stored."""
