"""What a user writes, how it is read, and what becomes of it. Knows no plugin by more than its descriptor, and no jax."""
