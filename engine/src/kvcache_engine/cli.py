"""The command `kvcache run`: load a model, serve a prompts file, show what it cost. jax is imported only once there is work."""

import argparse

from kvcache_core.config.flags import add_cache_flags
from kvcache_engine.interrupt import Interrupt
from kvcache_engine.job import Job, add_job_arguments, job_from_args
from kvcache_engine.output import Output

EPILOG = """examples:
  kvcache run examples/quickstart.yaml
  kvcache run examples/quickstart.yaml --prompts mine.jsonl --json out/result.json
  kvcache run examples/quickstart.yaml --hicache-storage none --set engine.max_running=1
  kvcache run examples/quickstart.yaml --cache-type chunk_cache --set hicache=null

a prompts file has one JSON object a line:
  {"id": "one", "prompt": "The capital of France is", "max_tokens": 8}
  {"id": "two", "prompt": [504, 282], "temperature": 0.8, "top_p": 0.9, "seed": 7, "stop": ["\\n"]}
  {"id": "chat", "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "And?"}], "extra_key": "lora-7"}

exit status: 0 all requests were answered; 1 some were not; 2 the configuration, the model or the prompts file cannot be used;
130 interrupted by Ctrl-C; 143 by SIGTERM.

with a storage (hicache.storage), what it does not have yet is stored at the end, for at most hicache.persist_timeout seconds.
Ctrl-C ends the serving after the current step, or the storing: what was done is printed, and written to --json. While the model
loads, it ends that, with nothing to print or write. A second Ctrl-C leaves at once, with nothing printed or written; what the
storage has confirmed until then stays there. SIGTERM does the same as Ctrl-C."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvcache run`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_job_arguments(parser)
    parser.add_argument(
        "--json",
        metavar="OUT",
        dest="json_out",
        help="write the results to OUT as JSON (`-`: standard output); missing folders are made",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress and no tables")
    add_cache_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the prompts file; returns the exit status."""
    job = job_from_args(args, "run")
    # Around the imports of jax, too: what a handler of Python's own raises there can be lost.
    with Interrupt() as interrupt:
        return job.located(lambda: _serve(args, job, interrupt))


def _serve(args: argparse.Namespace, job: Job, interrupt: Interrupt) -> int:
    # Here, not above: `kvcache run --help` and every configuration error answer without waiting for jax.
    from kvcache_engine.engine import build_engine, load_engine_model
    from kvcache_engine.freed_memory import keep_freed_memory
    from kvcache_engine.run import prepare_jax, serve
    from kvcache_engine.screen import LoadingModel, Screen
    from kvcache_engine.view import ProgressView

    interrupt.check()
    job.check_cache()
    if job.loaded.config.hicache is not None:
        keep_freed_memory()
    prepare_jax(job.engine, job.loaded.folder)
    out = None if args.json_out is None else Output(args.json_out, "--json")
    with Screen(quiet=args.quiet, tables_aside=args.json_out == "-") as screen:
        view = ProgressView(screen)
        model = load_engine_model(job.engine, job.loaded.folder, LoadingModel(screen, interrupt))
        interrupt.check()
        engine = build_engine(job.loaded.config, job.engine, model)
        report = serve(engine, job.engine, job.lines, view, interrupt)
    # The file first: whatever goes wrong with a terminal must not lose it.
    if out is not None:
        out.write_json(report.as_dict())
    view.show(report)
    if interrupt.requested:
        return interrupt.status
    return 1 if report.summary["errors"] else 0
