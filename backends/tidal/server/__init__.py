"""Starting, watching and ending a real tritonserver."""
