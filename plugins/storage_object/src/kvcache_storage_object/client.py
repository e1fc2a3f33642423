"""The client of an object store, made from options. Requests have time-outs and few retries: the library's own wait for minutes.

Making one opens no connection. Environment variables of the services' SDKs are read by the library where an option is not given.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from kvcache_storage_object.config import ObjectOptions

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


_PROCESS: Final = os.getpid()
"""The library's threads are started once a process, and a fork takes none of them along: whatever is asked there hangs, also of a
client that is made there. Who has imported this module is who may use the library."""


def in_this_process() -> bool:
    """Whether the library can be used: False in the child of a fork."""
    return os.getpid() == _PROCESS


def check_process() -> None:
    """Raises RuntimeError in the child of a fork."""
    if not in_this_process():
        raise RuntimeError("the client of object stores does not survive a fork: start processes with 'spawn', and open it there")


def make_client(options: ObjectOptions, retries: int) -> "ObjectStore":
    """Raises RuntimeError in the child of a fork, and what the library raises for settings that cannot work, some of them from
    the environment."""
    check_process()
    address = options.address
    seconds = timedelta(seconds=options.timeout)
    client: ClientConfig = {"timeout": seconds, "connect_timeout": timedelta(seconds=options.connect_timeout)}
    if options.endpoint is not None:
        client["allow_http"] = options.endpoint.startswith("http://")  # only who writes it gets it
    retry: RetryConfig = {
        "max_retries": retries,
        "retry_timeout": seconds,
        "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1), "base": 2},
    }
    config = _given(options)
    if address.service == "s3":
        return S3Store(address.bucket, client_options=client, retry_config=retry, config=config)
    if address.service == "gcs":
        return GCSStore(address.bucket, client_options=client, retry_config=retry, config=config)
    config["account_name"] = address.account
    return AzureStore(address.bucket, client_options=client, retry_config=retry, config=config)


def listed(client: "ObjectStore", prefix: str, at_once: int) -> "Iterator[Sequence[ObjectMeta]]":
    """What lies below `prefix`, in parts of `at_once` objects that are asked for one by one. Raises what the library raises."""
    # Another overload names a type of a package that is not needed.
    return iter(obstore.list(client, prefix or None, chunk_size=at_once))  # pyright: ignore[reportUnknownMemberType]


def _given(options: ObjectOptions) -> Any:
    """The library's names of the options that were given; each service has a table of its own type."""
    named: dict[str, object] = {
        "endpoint": options.endpoint,
        "region": options.region,
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key and options.secret_access_key.get_secret_value(),
        "session_token": options.session_token and options.session_token.get_secret_value(),
        "account_key": options.account_key and options.account_key.get_secret_value(),
        "sas_key": options.sas_token and options.sas_token.get_secret_value(),
        "service_account": options.service_account and str(Path(options.service_account).expanduser()),
        "skip_signature": options.anonymous or None,
        "virtual_hosted_style_request": options.virtual_hosted or None,
        "disable_bulk_delete": (not options.bulk_delete) or None,
    }
    return {name: value for name, value in named.items() if value is not None}
