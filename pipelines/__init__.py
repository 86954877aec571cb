"""The runs: recipes, stages and the command line."""
