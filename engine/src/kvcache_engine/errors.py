"""Errors of the engine that a user can cause. All derive from `EngineError`, so the command line catches one type."""

from kvcache_core.errors import KVCacheError


class EngineError(KVCacheError):
    """Base of the engine's deliberate errors. Its text names the cause.

    What to do: read the text; it names the model, the file or the request.
    """


class ModelNotFoundError(EngineError):
    """A model name or path leads to no file: nothing was read.

    What to do: correct `engine.model`; a path is relative to the configuration file's folder, and the text has the pip command
    for the model that comes as a package.
    """


class ModelFileError(EngineError):
    """A model file is truncated, corrupt or incomplete. The text names the file and what was found in it.

    What to do: download the file again.
    """


class UnsupportedModelError(EngineError):
    """A model file is readable, but its architecture, quantisation or tokenizer is not one this engine computes.

    What to do: choose another model, or another file of the same model.
    """


class ChatTemplateError(EngineError):
    """A model has no chat template, or its template refuses the messages.

    What to do: give `prompt` instead of `messages` in the prompts file, or change the roles the text names.
    """


class ShardingError(EngineError):
    """A model or a pool cannot be laid out on the devices that were asked for.

    What to do: change `engine.tensor` to a number that fits the KV heads and the devices there are.
    """


class RequestError(EngineError):
    """A request or a prompts file that can never be served. The text names the request or the line; other requests go on.

    What to do: correct that line of the prompts file, or give it fewer tokens than the engine's context and pool.
    """
