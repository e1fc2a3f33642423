"""The command `kvcache run`: load a model, serve a prompts file, show what it cost. jax is imported only once there is work."""

import argparse
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from kvcache_core.config.flags import add_cache_flags, config_from_args
from kvcache_core.config.load import LoadedConfig
from kvcache_core.errors import ConfigError, KVCacheError
from kvcache_engine.config import EngineConfig
from kvcache_engine.prompts_file import PromptLine, read_prompts

EPILOG = """examples:
  kvcache run examples/quickstart.yaml
  kvcache run examples/quickstart.yaml --prompts mine.jsonl --json out/result.json
  kvcache run examples/quickstart.yaml --cache-type chunk_cache --set engine.max_running=1

a prompts file has one JSON object a line:
  {"id": "one", "prompt": "The capital of France is", "max_tokens": 8}
  {"id": "two", "prompt": [504, 282], "temperature": 0.8, "top_p": 0.9, "seed": 7, "stop": ["\\n"]}
  {"id": "chat", "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "And?"}], "extra_key": "lora-7"}

exit status: 0 all requests were answered; 1 some were not; 2 the configuration, the model or the prompts file cannot be used;
130 interrupted (what was done is printed, and written to --json)."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvcache run`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("config", metavar="CONFIG", help="configuration file with an `engine:` section")
    parser.add_argument("--prompts", metavar="FILE", help="prompts file; replaces engine.prompts")
    parser.add_argument("--json", metavar="OUT", dest="json_out", help="write the results to OUT as JSON (`-`: standard output)")
    parser.add_argument("--quiet", action="store_true", help="no progress and no tables")
    add_cache_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the prompts file; returns the exit status."""
    loaded = config_from_args(args, args.config)
    section = loaded.sections.get("engine")
    if section is None:
        raise ConfigError(f"{args.config}: `kvcache run` needs a section `engine:` with at least `model:`")
    # Validated by the loader with the model that our own descriptor names.
    engine = EngineConfig.model_validate(section.model_dump())
    lines = read_prompts(_prompts_path(args, engine, loaded.folder))
    return _serve(args, loaded, engine, lines)


def _prompts_path(args: argparse.Namespace, engine: EngineConfig, folder: Path) -> Path:
    if args.prompts is not None:
        return Path(args.prompts)
    if engine.prompts is None:
        raise ConfigError("there is nothing to serve: give --prompts FILE, or engine.prompts in the configuration file")
    return folder / Path(engine.prompts).expanduser()


def _serve(args: argparse.Namespace, loaded: LoadedConfig, engine: EngineConfig, lines: list[PromptLine]) -> int:
    # Here, not above: `kvcache run --help` and every configuration error answer without waiting for jax.
    from kvcache_engine.run import RunReport, prepare_jax, serve
    from kvcache_engine.view import ProgressView

    prepare_jax(engine)
    out = Path(args.json_out).expanduser() if args.json_out not in (None, "-") else None
    if out is not None:
        _check_writable(out)
    with ProgressView(quiet=args.quiet) as view, _Interrupt() as interrupt:
        try:
            report: RunReport = serve(loaded, engine, lines, view, interrupt)
        except KVCacheError as error:
            located = loaded.located(error)
            if located is error:
                raise
            raise located from error
    if not args.quiet:
        view.show(report)
    if args.json_out is not None:
        _write_json(report.as_dict(), out)
    if interrupt.requested:
        return 130
    return 1 if report.summary["errors"] else 0


def _check_writable(out: Path) -> None:
    """Find out before minutes of work, not after them."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise KVCacheError(f"cannot write --json {out}: {error}") from error


def _write_json(data: Mapping[str, Any], out: Path | None) -> None:
    text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")


class _Interrupt:
    """Ctrl-C asks for an end after the current step, so that no step is cut in the middle; a second one ends at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> "_Interrupt":
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
