"""Sweeps: many runs that differ in a few settings, and what became of each."""
