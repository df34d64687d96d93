"""What the console shows: readings of the servers' metrics, taken while somebody looks."""
