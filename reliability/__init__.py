"""What a server is put through that has to stay up: `python -m reliability`, see docs/explanation/reliability.md."""
