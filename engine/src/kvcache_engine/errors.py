"""Errors of the engine that a user can cause. All derive from `EngineError`, so the command line catches one type."""

from kvcache_core.errors import KVCacheError


class EngineError(KVCacheError):
    """Base of the engine's deliberate errors. Its text names the cause and what to do about it."""


class ModelNotFoundError(EngineError):
    """A model name or path leads to no file: nothing was read."""


class ModelFileError(EngineError):
    """A model file is truncated, corrupt or incomplete. The text names the file and what was found in it."""


class UnsupportedModelError(EngineError):
    """A model file is readable, but its architecture, quantisation or tokenizer is not one this engine computes."""


class ChatTemplateError(EngineError):
    """A model has no chat template, or its template refuses the messages."""


class ShardingError(EngineError):
    """A model or a pool cannot be laid out on the devices that were asked for."""


class RequestError(EngineError):
    """A request or a prompts file that can never be served. The text names the request or the line; other requests go on."""
