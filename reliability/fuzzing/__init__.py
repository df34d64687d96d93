"""Requests that no server may accept: made from valid ones by one thing that is wrong, the same ones for a seed."""
