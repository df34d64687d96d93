"""Tidal against OpenVINO GenAI in processes without servers: speed by precision, prompts, prefixes, memory."""
