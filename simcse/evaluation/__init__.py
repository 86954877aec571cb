"""Scoring of sentence encoders as the literature does it."""
