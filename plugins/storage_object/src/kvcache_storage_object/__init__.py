"""The storage backend of object stores."""
