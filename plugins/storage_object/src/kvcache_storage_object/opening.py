"""Opening a store: everything that would otherwise be a silent miss for every page is asked first, within the deadline.

A list, because a missing bucket looks like a missing page to every other question, and because without the right to list S3 says
"forbidden" for an absent page. Then the marker, which tells a store from a slip in the prefix, and by which later formats are
known.
"""

import json
import logging
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_object.client import check_process, listed, make_client
from kvcache_storage_object.config import ObjectOptions
from kvcache_storage_object.failures import Failures
from kvcache_storage_object.fan_out import FanOut
from kvcache_storage_object.names import Names
from kvcache_storage_object.storage import ObjectStorage

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

FORMAT: Final = 1
_PATH: Final = ("hicache", "storage")
_MARKER: Final = json.dumps({"kvcache": "pages of the storage backend 'object'", "format": FORMAT}).encode() + b"\n"


def make(options: ObjectOptions, scope: StorageScope) -> HiCacheStorage:
    """The factory named by the descriptor. Raises StorageError where the store cannot be used; one who only reads makes none."""
    failures = Failures(options.secrets)
    try:
        check_process()
        names = Names(options.address.prefix, scope)
    except (RuntimeError, ValueError) as error:
        raise StorageError(f"storage 'object': {error}", path=_PATH) from None
    try:
        # No retries: somebody waits for an error that is to be seen, and a healthy server needs none.
        prober = make_client(options, retries=0)
        client = make_client(options, retries=options.retries)
    except Exception as error:
        raise _refusal(options, failures.translated(error)) from None
    fan_out = FanOut(options.workers, options.timeout)
    answers = fan_out.run([names], lambda names: _probe(prober, names, scope.read_only))
    if answers.errors:
        fan_out.close(0.0)
        raise _refusal(options, failures.translated(answers.first_error)) from None
    atomic = answers.results[0]
    if atomic is False:
        log.warning(
            "%s overwrites where it was asked to create: harmless to pages, but it is not what S3 promises", options.address
        )
    return ObjectStorage(
        client,
        names,
        fan_out,
        failures,
        bulk_delete=options.bulk_delete and options.address.service == "s3",
        atomic_create=atomic,
        read_only=scope.read_only,
    )


def _probe(client: "ObjectStore", names: Names, read_only: bool) -> bool | None:
    """Whether the server refuses to create what is there; None for one who only reads.

    Raises StorageError: there is no store, or one of another format. Raises what the library raises where the bucket is missing
    or may not be listed or written.
    """
    next(listed(client, f"{names.marker}.list", 1), None)
    known = _marker(client, names)
    if known is None and read_only:
        raise StorageError(
            f"storage 'object': nothing was ever stored here, {names.marker} is missing; check the prefix in 'url'",
            path=_PATH,
        )
    if known is not None:
        _check_format(known)
    if read_only:
        return None
    if known is None:
        _create(client, names)
    return not _create(client, names)


def _marker(client: "ObjectStore", names: Names) -> bytes | None:
    try:
        return obstore.get(client, names.marker).bytes().to_bytes()
    except FileNotFoundError:
        return None


def _check_format(marker: bytes) -> None:
    try:
        found = json.loads(marker)["format"]
    except (ValueError, TypeError, KeyError):
        found = "none that can be read"
    if found != FORMAT:
        raise StorageError(
            f"storage 'object': the store is of format {found}, and this version knows {FORMAT}; give another prefix in 'url'",
            path=_PATH,
        )


def _create(client: "ObjectStore", names: Names) -> bool:
    """Whether the server says that it has made the marker."""
    try:
        obstore.put(client, names.marker, _MARKER, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return False
    return True


def _refusal(options: ObjectOptions, error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    where = f"{options.address}" + (f" at {options.endpoint}" if options.endpoint else "")
    if isinstance(error, PermissionError):
        advice = "check the credentials; they need to list, read, write and delete there"
    elif isinstance(error, FileNotFoundError):
        advice = "there is no such bucket, and none is made here; check 'url'"
    elif options.credentials or options.anonymous:
        server = () if options.address.service == "gcs" else ("endpoint",)
        advice = "check " + ", ".join(f"'{name}'" for name in ("url", *server, *options.credentials)) + " and the network"
    else:
        advice = (
            "no credentials were given and the SDK's usual places may have none; check these, 'url', 'endpoint' and the network"
        )
    return StorageError(f"storage 'object' cannot use {where}: {error}; {advice}", path=_PATH)
