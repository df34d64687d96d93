"""Makes a vision transformer that adapts its tokens into engines, and prompts and heads for its tasks."""
