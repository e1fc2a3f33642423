"""Importing what a descriptor names as "module:attribute", with an error that says whose it is.

Foreign code runs here, so everything it may raise is turned into a `PluginError`; only Ctrl-C passes.
"""

import importlib
import re
import sys
from contextlib import redirect_stdout
from typing import Any

from kvcache_core.errors import PluginError
from kvcache_core.registry.records import PluginSource, Stage

TARGET = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")


def its_output_aside() -> redirect_stdout[Any]:
    """What a plugin prints inside goes to standard error: standard output is the answer of a command, perhaps JSON."""
    return redirect_stdout(sys.stderr)


def describe_exception(error: BaseException) -> str:
    """Type and text of an exception, on one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # the exception's own __str__, which is foreign code as well
        text = "its text cannot be made"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def import_target(target: str) -> Any:
    """The module, or the attribute of it, that "module" or "module:attribute" names. Raises what the import raises."""
    module_name, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)
    return found


def load_target(target: str, source: PluginSource, stage: Stage = Stage.FACTORY) -> Any:
    """Import "module:attribute" on behalf of the plugin `source`.

    Raises:
        PluginError: the import failed; names distribution, version, stage and exception, which is kept as its cause.
    """
    try:
        with its_output_aside():
            found = import_target(target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"{source} is broken at stage '{stage}': importing {target} raised {describe_exception(error)}"
        raise PluginError(text) from error
    if not callable(found):
        raise PluginError(f"{source} is broken at stage '{stage}': {target} is not callable")
    return found
