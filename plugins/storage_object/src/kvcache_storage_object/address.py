"""Where a store is: service, bucket and prefix, from a URL. It opens nothing, and repeats nothing of a URL that may be secret."""

import re
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

Service = Literal["s3", "gcs", "azure"]

SCHEMES: dict[str, Service] = {"s3": "s3", "gs": "gcs", "az": "azure"}
FORMS = "s3://bucket[/prefix], gs://bucket[/prefix] or az://account/container[/prefix]"

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
# What every store and every proxy takes as it is: a name that one of them writes in another way would be another object's.
_SEGMENT = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.=+@-]{1,200}")


class Address(NamedTuple):
    """`account`: Azure's, empty elsewhere. `bucket`: Azure's container. `prefix`: empty, or with a slash at its end."""

    service: Service
    account: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        scheme = next(scheme for scheme, service in SCHEMES.items() if service == self.service)
        return f"{scheme}://{self.account and self.account + '/'}{self.bucket}/{self.prefix}".rstrip("/")


def parse_address(url: str) -> Address:
    """Raises ValueError, without the URL in its text."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"must be {FORMS}") from None
    if "@" in parts.netloc:
        raise ValueError("must not have a name or password in it; give them in options of their own, or leave them to the SDK")
    service = SCHEMES.get(parts.scheme)
    if service is None or "?" in url or "#" in url:
        raise ValueError(f"must be {FORMS}")
    names = [parts.netloc, *parts.path.strip("/").split("/")] if parts.path.strip("/") else [parts.netloc]
    account = names.pop(0) if service == "azure" else ""
    if not names or not all(_BUCKET.fullmatch(name) for name in ([account, names[0]] if service == "azure" else names[:1])):
        raise ValueError(f"must name a bucket: {FORMS}")
    bucket, *prefix = names
    if not all(_SEGMENT.fullmatch(segment) for segment in prefix):
        raise ValueError("its prefix may have letters, digits and _ . = + @ - between single slashes, and no '.' or '..'")
    return Address(service, account, bucket, "".join(f"{segment}/" for segment in prefix))


def check_endpoint(url: str) -> str:
    """The URL of a server, without a slash at its end. Raises ValueError, without the URL in its text."""
    form = "must be http://host[:port] or https://host[:port]"
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(form) from None
    if "@" in parts.netloc:
        raise ValueError("must not have a name or password in it; give them in options of their own, or leave them to the SDK")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_good or parts.query or parts.fragment:
        raise ValueError(form)
    return url.rstrip("/")
