"""What every service does in the same way: end a request, wait, and answer. Systems and `tidal.triton` import it."""
