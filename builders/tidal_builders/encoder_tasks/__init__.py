"""How models for the tasks of encoders are loaded, compiled and verified: one entry per task. Imports no kind."""
