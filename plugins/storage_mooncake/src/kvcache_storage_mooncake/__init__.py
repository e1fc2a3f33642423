"""The storage backend of Mooncake Store."""
