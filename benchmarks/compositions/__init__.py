"""Systems that work together, and what that gains over each by itself."""
