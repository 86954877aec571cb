"""The training loop, its engines and the Ray Train run around it."""
