"""From raw text to the batches of a run."""
