"""Tasks of a frozen encoder as files: their records, their folders, and facts about what they change.

Imports `kinds`, `terms` and `tidal.tasks`; imported by the service, commands and builders, never by engines.
"""
