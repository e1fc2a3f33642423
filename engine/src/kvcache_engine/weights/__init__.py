"""Model files: where they are, what is in them, and what is wrong with them."""
