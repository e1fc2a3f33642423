"""`kvcache plugins list | doctor`: what is installed, what it offers, and whether it works. Only `doctor` imports factories."""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from kvcache_core.errors import PluginError
from kvcache_core.registry.descriptors import API_VERSION, CommandDescriptor, Descriptor
from kvcache_core.registry.known import Kind
from kvcache_core.registry.loading import load_target
from kvcache_core.registry.records import PluginRecord
from kvcache_core.registry.registry import Registry

COMMANDS = ("list", "doctor")


def fill(
    group: argparse.ArgumentParser, registry: Registry, run: str, add_strict: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Add the commands to the parser of their group; `run` is the namespace attribute for the chosen function."""
    group.set_defaults(**{run: _helper(group)})
    inner = group.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, summary: str, action: Callable[[argparse.Namespace, Registry], int]) -> None:
        example = f"examples:\n  kvcache plugins {name}\n  kvcache plugins {name} --json"
        parser = inner.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        add_strict(parser)
        parser.set_defaults(**{run: _bound(action, registry)})

    add("list", "list every plugin with what it offers; broken ones with stage and exception", _list)
    add("doctor", "import everything that plugins name; exit status 1 if anything is broken", _doctor)


def _bound(action: Callable[[argparse.Namespace, Registry], int], registry: Registry) -> Callable[[argparse.Namespace], int]:
    return lambda args: action(args, registry)


def _helper(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """`kvcache plugins` alone is a question about what it can do."""

    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return show


def _list(args: argparse.Namespace, registry: Registry) -> int:
    if args.json:
        _print_json({"api_version": API_VERSION, "plugins": [_as_dict(record) for record in registry.records]})
        return 0
    if not registry.records:
        print("no plugins installed; start with: pip install kvcache-chunk")
    for record in registry.records:
        print(_title(record))
        for kind, descriptor in record.offers:
            print(f"    {kind} {descriptor.name}: {descriptor.summary}")
        if not record.ok:
            print(f"    BROKEN at stage '{record.stage}': {record.error}")
    return 0


def _title(record: PluginRecord) -> str:
    source = record.source
    return f"{source.owner} (plugin '{source.name}', {source.target})"


def _as_dict(record: PluginRecord) -> dict[str, Any]:
    source = record.source
    return {
        "plugin": source.name,
        "distribution": source.distribution,
        "version": source.version,
        "target": source.target,
        "group": source.group,
        "ok": record.ok,
        "stage": str(record.stage),
        "error": record.error,
        "provides": [{"kind": str(kind), "name": item.name, "summary": item.summary} for kind, item in record.offers],
    }


def _doctor(args: argparse.Namespace, registry: Registry) -> int:
    findings = [finding for record in registry.records for finding in _examine(record)]
    sick = [finding for finding in findings if finding["error"] is not None]
    if args.json:
        _print_json({"ok": not sick, "checks": findings})
    else:
        for finding in findings:
            whose = finding["distribution"] or "an unknown distribution"
            print(f"{'ok    ' if finding['error'] is None else 'BROKEN'} {whose}: {finding['what']}")
            if finding["error"] is not None:
                print(f"       {finding['error']}")
        print(f"{len(findings)} checks, {len(sick)} broken")
    return 1 if sick else 0


def _examine(record: PluginRecord) -> Iterator[dict[str, Any]]:
    def finding(what: str, error: str | None) -> dict[str, Any]:
        return {"distribution": record.source.distribution, "plugin": record.source.name, "what": what, "error": error}

    yield finding("discovery", None if record.ok else record.trouble())
    for kind, descriptor in record.offers:
        for target in _targets(descriptor):
            error = None
            try:
                load_target(target, record.source)
            except PluginError as caught:
                error = str(caught)
            yield finding(_what(kind, descriptor, target), error)


def _what(kind: Kind, descriptor: Descriptor, target: str) -> str:
    return f"{kind} {descriptor.name}: {target}"


def _targets(descriptor: Descriptor) -> list[str]:
    if isinstance(descriptor, CommandDescriptor):
        named = (descriptor.configure, descriptor.run, descriptor.section_model)
        return [target for target in named if target is not None]
    return [descriptor.factory] if isinstance(descriptor.factory, str) else []


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
