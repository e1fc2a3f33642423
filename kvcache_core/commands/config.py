"""`kvcache config validate | explain | show | schema | resolve`: what a configuration says and what would become of it here.

Without a host there is no model: its class is the file's `model_class`, or assumed, and every output that depends on it says so.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from pydantic import BaseModel

from kvcache_core.config.core_schema import dump
from kvcache_core.config.flags import add_cache_flags, config_from_args
from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.problems import Loc, Problem, dotted
from kvcache_core.config.resolve import Resolution, resolve, usual_model
from kvcache_core.config.schema import config_schema
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.errors import InvalidConfigError, KVCacheError
from kvcache_core.registry.registry import Registry
from kvcache_core.standard_output import holds_unicode

AddStrict = Callable[[argparse.ArgumentParser], None]
Action = Callable[[argparse.Namespace, Registry], int]

_VALIDATE = (
    "check a file and flags against what is installed; exit status 2 and every problem with its place if they are wrong "
    "(what plugins name is looked up, not imported: see `plugins doctor`)"
)
_EXAMPLES = {
    "validate": """examples:
  kvcache config validate cache.yaml
  kvcache config validate cache.yaml --hicache-storage none --json
  kvcache config validate --cache-type radix_cache --page-size 64""",
    "explain": """examples:
  kvcache config explain cache.yaml
  kvcache config explain --model-class swa --hicache-ratio 4""",
    "show": """examples:
  kvcache config show cache.yaml
  kvcache config show cache.yaml --set hicache.ratio=4""",
    "resolve": """examples:
  kvcache config resolve cache.yaml > resolved.yaml""",
    "schema": """examples:
  kvcache config schema > kvcache.schema.json""",
}


COMMANDS = tuple(_EXAMPLES)


def fill(group: argparse.ArgumentParser, registry: Registry, run: str, add_strict: AddStrict) -> None:
    """Add the commands to the parser of their group; `run` is the namespace attribute for the chosen function."""
    group.set_defaults(**{run: _helper(group)})
    inner = group.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, summary: str, action: Action, *, file: bool = True) -> None:
        parser = inner.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=_EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if file:
            parser.add_argument("file", metavar="FILE", nargs="?", help="a YAML file; without it, flags alone")
            add_cache_flags(parser, registry)
            parser.add_argument(
                "--json", action="store_true", help="print JSON, for programs; what is wrong is printed as JSON too"
            )
        add_strict(parser)
        parser.set_defaults(**{run: _bound(_with_json_problems(action) if file else action, registry)})

    add("validate", _VALIDATE, _validate)
    add("explain", "show which cache would be built, and each step of the decision", _explain)
    add("show", "show every value and where it came from", _show)
    add("resolve", "print the same configuration with nothing left to choose", _resolve)
    add("schema", "print the JSON schema of a file, with what is installed", _schema, file=False)


def _bound(action: Action, registry: Registry) -> Callable[[argparse.Namespace], int]:
    return lambda args: action(args, registry)


def _with_json_problems(action: Action) -> Action:
    """The same command, which with --json says in JSON what is wrong as well: a program reads one stream and one format."""

    def act(args: argparse.Namespace, registry: Registry) -> int:
        try:
            return action(args, registry)
        except KVCacheError as error:
            if not args.json:
                raise
            problems = error.problems if isinstance(error, InvalidConfigError) else (_problem_of(error),)
            _print_json({"valid": False, "problems": [problem.as_dict() for problem in problems]})
            return 2

    return act


def _problem_of(error: KVCacheError) -> Problem:
    return Problem(error.path, error.message, suggestion=error.suggestion)


def _helper(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """`kvcache config` alone is a question about what it can do."""

    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return show


def _load_and_resolve(args: argparse.Namespace, registry: Registry) -> tuple[LoadedConfig, ModelSpec, Resolution]:
    loaded = config_from_args(args, args.file, registry)
    model = usual_model(loaded.config.model_class)
    try:
        return loaded, model, resolve(loaded.config, model, registry)
    except KVCacheError as error:
        raise loaded.located(error) from error


def _assumption(loaded: LoadedConfig, model: ModelSpec) -> str:
    if loaded.config.model_class is None:
        return f"{model.model_class} (assumed: the host says which, or set model_class)"
    return f"{model.model_class} (model_class, {loaded.origin(('model_class',))})"


def _validate(args: argparse.Namespace, registry: Registry) -> int:
    loaded, model, resolution = _load_and_resolve(args, registry)
    if args.json:
        _print_json({"valid": True, "problems": (), **_summary(loaded, model, resolution)})
    else:
        subject = args.file or "defaults and flags"
        print(f"{subject}: valid; {resolution.cache_type} for a model of class {_assumption(loaded, model)}")
    return 0


def _summary(loaded: LoadedConfig, model: ModelSpec, resolution: Resolution) -> dict[str, Any]:
    return {
        "cache_type": resolution.cache_type,
        "provider": resolution.provider,
        "model_class": model.model_class,
        "model_class_assumed": loaded.config.model_class is None,
        "components": list(resolution.components),
        "storage": resolution.storage,
        "steps": [step._asdict() for step in resolution.steps],
        "config": resolved_document(resolution, loaded),
    }


def _explain(args: argparse.Namespace, registry: Registry) -> int:
    loaded, model, resolution = _load_and_resolve(args, registry)
    if args.json:
        _print_json(_summary(loaded, model, resolution))
        return 0
    print(f"configuration: {args.file or 'defaults and flags'}")
    print(f"model class: {_assumption(loaded, model)}")
    print(f"model components: {', '.join(spec.name for spec in model.components)}")
    print("steps:")
    for number, step in enumerate(resolution.steps, 1):
        print(f"  {number}. {step}")
    print(f"cache type: {resolution.cache_type}, from {resolution.provider}")
    print(f"component plugins: {', '.join(resolution.components) or 'none needed'}")
    print(f"hicache: {'off' if resolution.config.hicache is None else 'on'}; storage: {resolution.storage or 'none'}")
    return 0


def _show(args: argparse.Namespace, registry: Registry) -> int:
    loaded = config_from_args(args, args.file, registry)
    tree = loaded.config.model_dump(mode="json") | {
        name: section.model_dump(mode="json") for name, section in loaded.sections.items()
    }
    leaves = [(loc, value, loaded.origin(loc)) for loc, value in _leaves(tree, ())]
    if args.json:
        _print_json([{"path": dotted(loc), "value": value, "origin": origin} for loc, value, origin in leaves])
        return 0
    rows = [(dotted(loc), json.dumps(value, ensure_ascii=not holds_unicode()), origin) for loc, value, origin in leaves]
    paths, values = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    for path, value, origin in rows:
        print(f"{path:{paths}}  {value:{values}}  {origin}")
    return 0


def _leaves(value: Any, loc: Loc) -> Iterator[tuple[Loc, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in cast(dict[str, Any], value).items():
            yield from _leaves(inner, (*loc, key))
    else:
        yield loc, value


def resolved_document(resolution: Resolution, loaded: LoadedConfig) -> dict[str, Any]:
    """A configuration file's content that resolves to the same thing; sections of other packages as they were given."""
    document = _without_none(resolution.config)
    if resolution.config.hicache is not None:
        document["hicache"] = _without_none(resolution.config.hicache)
    for name, section in loaded.sections.items():
        document[name] = section.model_dump(mode="json", exclude_unset=True)
    return document


def _without_none(model: BaseModel) -> dict[str, Any]:
    # Of this model's own fields only: a None among a plugin's options may differ from leaving the option out.
    return {name: value for name, value in model.model_dump(mode="json").items() if value is not None}


def _resolve(args: argparse.Namespace, registry: Registry) -> int:
    loaded, model, resolution = _load_and_resolve(args, registry)
    document = resolved_document(resolution, loaded)
    if args.json:
        _print_json(document)
        return 0
    print(f"# model class: {_assumption(loaded, model)}")
    print(dump(document, allow_unicode=holds_unicode()), end="")
    return 0


def _schema(args: argparse.Namespace, registry: Registry) -> int:
    schema, troubles = config_schema(registry)
    for trouble in troubles:
        print(f"kvcache: {trouble}", file=sys.stderr)
    _print_json(schema)
    return 0


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=not holds_unicode()))
