"""What a page holds, by value: a digest of all that a page of keys and values depends on.

A wrong, stale or foreign page is seen by its content. Each call hashes the prefix anew, so nothing is shared with the chained
keys that caches use.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.tokens import ExtraKey

LAYERS = 2
BYTES = 16

Content = npt.NDArray[np.uint8]
"""(LAYERS, BYTES) for one page or state."""


def page_content(extra_key: ExtraKey, component: str, prefix: bytes) -> Content:
    """The content of the page, or state, of `component` that ends where `prefix` (int32 tokens as bytes) ends. A page that is
    only partly computed has the content of the shorter prefix, so nobody can take it for a finished one."""
    head = repr((extra_key, component)).encode()
    layers = [hashlib.blake2b(head + bytes([layer]) + prefix, digest_size=BYTES).digest() for layer in range(LAYERS)]
    return np.frombuffer(b"".join(layers), np.uint8).reshape(LAYERS, BYTES)
