"""Reliability suite: failures, overload and hostile requests against a running server (`python -m reliability`, see
docs/explanation/reliability.md). Only its own command and its tests import it."""
