"""The record of runs and the model registry."""
