"""The storage backend of local files."""
