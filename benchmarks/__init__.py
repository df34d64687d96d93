"""Commands that reproduce comparisons: each prints a table, saves a plot and states its claims."""
