"""ChunkCache: no prefix reuse. Made for decode nodes of a prefill/decode split."""
