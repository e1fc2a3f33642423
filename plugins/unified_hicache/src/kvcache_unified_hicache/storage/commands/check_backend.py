"""`kvcache storage check`: the start-up self-test by hand."""

import argparse
import json
import sys

from kvcache_core.errors import KVCacheError
from kvcache_unified_hicache.storage.commands.opened import configured_storage
from kvcache_unified_hicache.storage.self_test import self_test


def run(args: argparse.Namespace) -> int:
    storage = configured_storage(args)
    try:
        with storage.opened(storage.own_scope) as backend:
            steps = self_test(backend, storage.timeout)
    except KVCacheError as error:
        text = str(storage.located(error))
        if args.json:
            print(json.dumps({"storage": storage.kind, "works": False, "error": text}, indent=2))
        else:
            print(text, file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"storage": storage.kind, "works": True, "steps": [step._asdict() for step in steps]}, indent=2))
        return 0
    for step in steps:
        print(f"{step.name:16} {step.seconds * 1e3:8.2f} ms")
    print(f"storage '{storage.kind}' works")
    return 0
