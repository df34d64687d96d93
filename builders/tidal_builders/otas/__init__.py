"""Build token-adaptive vision transformers (OTAS) into engines, and train prompts and heads of their tasks."""
