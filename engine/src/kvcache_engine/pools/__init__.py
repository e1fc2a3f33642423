"""Paged device memory: who owns which page, where its bytes are, and the gate through which they are written."""
