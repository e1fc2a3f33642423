"""Plugins: what they declare, how they are found, and what is known about the ones that are broken."""
