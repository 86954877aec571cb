"""The page of `simcse report`: what is gathered, what is said of it, how it is rendered."""
