"""Commands that reproduce comparisons: each prints tables, saves a plot and checks its claims. Nothing imports it but
`reliability`, `tests` and its own commands."""
