"""Joining byte strings so that no two lists of them give the same result. It knows nothing of what the parts mean."""


def frame(*parts: bytes) -> bytes:
    """How many `parts` there are, then each with its length in front; every number is 4 bytes, little endian.

    Injective: (b"a", b"bc") differs from (b"ab", b"c"), and an absent part from an empty one. Plain joining would make one key of
    two identities. Raises OverflowError for a part of 4 GiB or more.
    """
    framed = [len(parts).to_bytes(4, "little")]
    for part in parts:
        framed += (len(part).to_bytes(4, "little"), part)
    return b"".join(framed)
