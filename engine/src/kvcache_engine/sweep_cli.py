"""The command `kvcache sweep`: how much host memory is worth having, as a table, as JSON and as a page with plots."""

import argparse
import math
from functools import partial

from kvcache_core.config.flags import add_cache_flags
from kvcache_core.errors import KVCacheError
from kvcache_engine.interrupt import Interrupt
from kvcache_engine.job import Job, add_job_arguments, job_from_args
from kvcache_engine.output import Output

EPILOG = """examples:
  kvcache sweep examples/hicache.yaml --ratios 0,0.5,1,2,4
  kvcache sweep examples/hicache.yaml --ratios 1,2 --json out/sweep.json --html out/sweep.html
  kvcache sweep examples/hicache.yaml --set hicache.write_policy=null --hicache-backup-on evict
  kvcache sweep examples/quickstart.yaml --hicache-storage none --set engine.device_tokens=704

the workload is served once for every ratio (size of L2 as a multiple of L1; 0 is without L2) by one model and one set of compiled
programs, and once before that for compilation alone. Everything else is as the configuration says; with a storage (L3), a pass
finds there what the ones before it stored, so the ratios are compared in front of a filled storage.

exit status: 0 every ratio was measured and all requests were answered; 1 some requests were not, or a ratio could not be served
(the others are); 2 the configuration, the model or the prompts file cannot be used; 130 interrupted by Ctrl-C, 143 by
SIGTERM (the ratios that were complete are printed and written)."""

DEFAULT = "0.5,1,2,4"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvcache sweep`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_job_arguments(parser)
    parser.add_argument("--ratios", metavar="LIST", type=ratios, default=DEFAULT, help=f"sizes of L2 (default: {DEFAULT})")
    parser.add_argument(
        "--json",
        metavar="OUT",
        dest="json_out",
        help="write the points to OUT as JSON (`-`: standard output); missing folders are made",
    )
    parser.add_argument(
        "--html",
        metavar="OUT",
        dest="html_out",
        help="write a page with table and plots to OUT; it needs no network; missing folders are made",
    )
    parser.add_argument(
        "--no-warm-up", action="store_true", help="leave out the pass for compilation; the first ratio then pays for it"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress and no table")
    add_cache_flags(parser)


def ratios(text: str) -> tuple[float, ...]:
    """`0.5,1,2` as numbers in ascending order; for argparse."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers with commas between them, such as {DEFAULT}, not {text!r}") from None
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise argparse.ArgumentTypeError(f"ratios are 0 or more, not {text!r}")
    if len(set(values)) != len(values):
        raise argparse.ArgumentTypeError(f"each ratio once, not {text!r}")
    return tuple(sorted(values))


def run(args: argparse.Namespace) -> int:
    """Serve the prompts file for every ratio; returns the exit status."""
    job = job_from_args(args, "sweep")
    # Around the imports of jax, too: what a handler of Python's own raises there can be lost.
    with Interrupt() as interrupt:
        return job.located(lambda: _sweep(args, job, interrupt))


def _sweep(args: argparse.Namespace, job: Job, interrupt: Interrupt) -> int:
    if args.json_out == args.html_out == "-":
        raise KVCacheError("--json - and --html - cannot both be written to standard output; give one of them a file")
    # Here, not above: `kvcache sweep --help` and every configuration error answer without waiting for jax.
    from kvcache_engine.engine import load_engine_model
    from kvcache_engine.freed_memory import keep_freed_memory
    from kvcache_engine.run import prepare_jax
    from kvcache_engine.screen import LoadingModel, Screen
    from kvcache_engine.sweep import sweep, with_ratio
    from kvcache_engine.sweep_page import sweep_page
    from kvcache_engine.sweep_view import PassView, sweep_table

    interrupt.check()
    job.check_cache([with_ratio(job.loaded.config, ratio) for ratio in args.ratios])
    keep_freed_memory()
    prepare_jax(job.engine, job.loaded.folder)
    json_out = None if args.json_out is None else Output(args.json_out, "--json")
    html_out = None if args.html_out is None else Output(args.html_out, "--html")
    with Screen(quiet=args.quiet, tables_aside="-" in (args.json_out, args.html_out)) as screen:
        model = load_engine_model(job.engine, job.loaded.folder, LoadingModel(screen, interrupt))
        interrupt.check()
        result = sweep(
            model,
            job.loaded.config,
            job.engine,
            job.lines,
            args.ratios,
            partial(PassView, screen),
            interrupt,
            warm_up=not args.no_warm_up,
        )
    report = {
        "model": {"id": model.model_id, "version": model.model_version},
        "page_size": job.loaded.config.page_size,
        "engine": job.engine.model_dump(),
        "interrupted": interrupt.requested,
        "points": result.points,
        "failures": result.failures,
    }
    if json_out is not None:
        json_out.write_json(report)
    if html_out is not None:
        html_out.write(sweep_page(report))
    screen.show(sweep_table(result.points))
    for failure in result.failures:
        screen.say(f"ratio {failure['ratio']:g} could not be served: {failure['error']}", "red")
    if interrupt.requested:
        return interrupt.status
    return 1 if result.failures or any(point["errors"] for point in result.points) else 0
