"""The decoder: its sizes, its parameters and its arithmetic, as pure functions of arrays."""
