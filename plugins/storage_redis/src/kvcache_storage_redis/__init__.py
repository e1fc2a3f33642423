"""The storage backend of Redis and Valkey servers."""
