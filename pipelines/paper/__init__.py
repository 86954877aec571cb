"""The paper's tables and figures: their rows, how each is trained and measured."""
