"""The digests that name a path's pages in storage, computed when they are first asked for and kept in the nodes."""

from typing import cast, final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.tokens import ExtraKey
from kvcache_radix.node import DIGEST_BYTES, Node, Root
from kvcache_unified_hicache.storage.page_keys import PageKeys


@final
class NodeDigests:
    """32 bytes a page."""

    def __init__(self, keys: PageKeys) -> None:
        self._keys = keys

    def of(self, node: Node) -> bytes:
        """Of the pages of `node`, which is in the tree."""
        missing: list[Node] = []
        at = node
        while at.digests is None and at.parent is not None:
            missing.append(at)
            at = at.parent
        if at.digests is None:
            at.digests = self._keys.root(cast(Root, at).extra_key)
        last = at.digests
        for below in reversed(missing):
            last = below.digests = self._keys.chain(last[-DIGEST_BYTES:], below.key)
        return last

    def of_prompt(self, view: npt.NDArray[np.int32], node: Node | None, matched: int, extra_key: ExtraKey) -> bytes:
        """Of the whole pages of `view`, the first `matched` tokens of which lie on the path to `node`."""
        known: list[bytes] = []
        at = node
        while at is not None and at.parent is not None:
            known.append(self.of(at))
            at = at.parent
        pages = b"".join(reversed(known))
        if node is not None and node.end > matched:
            # The match ended inside the node.
            cut = (node.end - matched) * len(self.of(node)) // (node.end - node.start)
            pages = pages[: len(pages) - cut]
        last = pages[-DIGEST_BYTES:] or self._keys.root(extra_key)
        return pages + self._keys.chain(last, view[matched:].tobytes())
