"""A storage backend for kvcache: pages as rows of one SQLite database."""
