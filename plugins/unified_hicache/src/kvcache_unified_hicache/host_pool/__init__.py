"""Host memory for pages (L2), usable without a tree and without a scheduler.

`base.HostKVPool` is the interface, `per_page` and `preallocated` are its two implementations.
"""
