"""The names of stored pages. One function for writing and for looking up, so that they cannot disagree.

A page's content depends on all tokens before it, so its name is a chain: digest 0 names who may share pages at all (model,
version, page size, extra key), digest i adds the tokens of page i to digest i - 1. The storage key of a component's page adds
what the component's bytes are. docs/page_format.md shows every field beside the RFC's formula. Neither trees nor storages are
known here.
"""

import hashlib
from typing import Final, final

from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.contracts.tokens import ExtraKey, check_extra_key
from kvcache_unified_hicache.storage.framing import frame

SCHEMA: Final = b"kvcache page key 1"
"""Change it whenever the same fields would name other content: old pages are then not found any more."""

DIGEST_BYTES: Final = 32
TOKEN_BYTES: Final = 4

# Copying a fresh hash object is a little faster than making one by name, and every page pays for it twice.
_new_sha256 = hashlib.sha256().copy


@final
class PageKeys:
    """The chain of digests of one model at one page size. Holds no state: every call gives the same for the same arguments, in
    every process."""

    def __init__(self, model: ModelSpec, page_size: int) -> None:
        self._identity = (SCHEMA, _text(model.model_id), _text(model.model_version), str(page_size).encode("ascii"))
        self._page_bytes = page_size * TOKEN_BYTES

    def root(self, extra_key: ExtraKey) -> bytes:
        """Digest 0, 32 bytes: what all pages of one `extra_key` descend from.

        Raises TypeError for anything but a tuple of bytes.
        """
        return hashlib.sha256(frame(*self._identity, frame(*check_extra_key(extra_key)))).digest()

    def chain(self, parent: bytes, tokens: bytes | memoryview) -> bytes:
        """The digests of the pages that follow the page of digest `parent`, 32 bytes each, in one string.

        `tokens`: int32, little endian, whole pages. How a prompt is cut into calls does not matter:
        chain(p, a + b) == chain(p, a) + chain(chain(p, a)[-32:], b).
        Raises ValueError for a part of a page: its digest would name a page that nobody has.
        """
        step = self._page_bytes
        if len(parent) != DIGEST_BYTES or len(tokens) % step:
            raise ValueError(f"{len(parent)} bytes of parent and {len(tokens)} of tokens are not a digest and pages of {step}")
        digests: list[bytes] = []
        digest = parent
        data = bytes(tokens)
        for start in range(0, len(data), step):
            sha = _new_sha256()
            sha.update(digest + data[start : start + step])
            digest = sha.digest()
            digests.append(digest)
        return b"".join(digests)


def component_identity(name: str, pool: bytes, process_shard: tuple[int, int] = (0, 1)) -> bytes:
    """What a component's bytes are, framed: pages that differ here are never exchanged, even where their sizes agree.

    `pool`: the `DevicePool.identity`. `process_shard`: (index, count) where each process stores only its own part of a page.
    """
    index, count = process_shard
    return frame(_text(name), pool, str(index).encode("ascii"), str(count).encode("ascii"))


def storage_keys(digests: bytes, identity: bytes) -> list[str]:
    """One key of 64 lowercase hex digits for each of the `digests` (32 bytes a page): sha256(digest || identity).

    A hash and nothing else: no model id, extra key or name from outside ever becomes part of a path.
    """
    keys: list[str] = []
    for start in range(0, len(digests), DIGEST_BYTES):
        sha = _new_sha256()
        sha.update(digests[start : start + DIGEST_BYTES] + identity)
        keys.append(sha.hexdigest())
    return keys


def _text(value: str) -> bytes:
    """Every str has a key of its own, also one with half a surrogate pair, which a strict encoder refuses."""
    return value.encode("utf-8", "surrogatepass")
