"""What may stand beside `kind: redis`. It knows what is possible, nothing of any server. Secrets are never shown by any of it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self, cast

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from kvcache_core.config.sizes import SizeInBytes
from kvcache_core.registry.descriptors import PluginOptions
from kvcache_storage_redis.url import ServerUrl, is_mask, parse_url

LARGEST_VALUE: Final = 512 << 20
"""The most that a server takes as one value unless it is told otherwise (proto-max-bulk-len)."""

_ADDRESS: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]:\d{1,5}|[^\s:@/]+:\d{1,5}")
_IN_URL: Final = ("host", "port", "db", "username", "password", "tls")
_FILES: Final = ("password_file", "tls_ca_file", "tls_cert_file", "tls_key_file")


def _as_tuple(value: object) -> object:
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


class RedisOptions(PluginOptions):
    """Options of RedisStorage: one server by `url` or by `host` and its fields, or a cluster by some of its nodes."""

    model_config = ConfigDict(strict=True, validate_default=True, hide_input_in_errors=True)

    url: ServerUrl | None = Field(
        default=None, description="redis://user:password@host:port/db, or rediss:// for TLS; instead of the six fields below"
    )
    host: str = Field(default="localhost", min_length=1, description="the server, or any node of a cluster")
    port: int = Field(default=6379, ge=1, le=65535, description="its port")
    db: int = Field(default=0, ge=0, description="number of the database; a cluster has only 0")
    username: str | None = Field(default=None, min_length=1, description="user of an access control list; default: the server's")
    password: SecretStr | None = Field(default=None, min_length=1, description="its password; better: password_file")
    tls: bool = Field(default=False, description="whether to speak TLS")
    password_file: str | None = Field(
        default=None,
        min_length=1,
        description="file whose first line is the password; it and the next three are relative to the configuration's folder",
    )
    tls_ca_file: str | None = Field(
        default=None, min_length=1, description="certificates of authorities to trust, PEM; default: the system's"
    )
    tls_cert_file: str | None = Field(default=None, min_length=1, description="certificate of this client, PEM")
    tls_key_file: str | None = Field(default=None, min_length=1, description="key of tls_cert_file, PEM, not encrypted")
    tls_verify: bool = Field(default=True, description="whether the server's certificate and name are checked")
    cluster: bool = Field(default=False, description="whether the server is a node of a cluster, over which pages are spread")
    nodes: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = Field(
        default=(), description="further nodes of the cluster, host:port, to ask for the others when `host` does not answer"
    )
    key_prefix: str = Field(
        default="kvcache",
        pattern=r"^[A-Za-z0-9_.:/-]{1,200}$",
        description="what every key begins with; caches that share pages have the same one",
    )
    ttl_seconds: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="a page goes when it was not read or written for so long; null: never for its age",
    )
    max_value_bytes: SizeInBytes = Field(
        default=None,
        gt=0,
        le=LARGEST_VALUE,
        description="pages above it are refused before they are sent; null: 512MiB, and a quarter of the server's maxmemory",
    )
    pipeline_bytes: SizeInBytes = Field(
        default=8 << 20, gt=0, le=1 << 30, description="bytes of pages in one pipeline, at least one page (or '8MiB')"
    )
    connect_timeout: float = Field(
        default=1.0, gt=0, le=60, allow_inf_nan=False, description="seconds to wait for a connection to be made"
    )
    socket_timeout: float = Field(
        default=2.0,
        gt=0,
        le=60,
        allow_inf_nan=False,
        description="seconds to wait for a server to read or to answer; below hicache.storage_timeout, and one hung node of a "
        "cluster costs no more than its own pages",
    )

    @field_validator("url")
    @classmethod
    def _url_has_parts(cls, url: ServerUrl | None) -> ServerUrl | None:
        if url is not None:
            _refuse_mask(url.get_secret_value())
            parse_url(url.get_secret_value())
        return url

    @field_validator("password")
    @classmethod
    def _password_is_one(cls, password: SecretStr | None) -> SecretStr | None:
        if password is not None:
            _refuse_mask(password.get_secret_value())
        return password

    @field_validator("nodes")
    @classmethod
    def _nodes_have_ports(cls, nodes: tuple[str, ...]) -> tuple[str, ...]:
        for node in nodes:
            # It is not quoted: who writes a URL here may have a password in it.
            if _ADDRESS.fullmatch(node) is None or not 0 < int(node.rpartition(":")[2]) <= 65535:
                raise ValueError("every node must be a host and a port, such as 10.0.0.7:6379")
        return nodes

    @field_validator("pipeline_bytes")
    @classmethod
    def _pipeline_has_a_size(cls, size: int | None) -> int | None:
        if size is None:
            raise ValueError("must be a size: without a limit one pipeline could fill the server's memory")
        return size

    @field_validator(*_FILES)
    @classmethod
    def _beside_the_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        """A program that is started elsewhere with the same file finds the same files."""
        if path is None:
            return None
        if "\0" in path:
            raise ValueError("must be a path, without a null character")
        context = cast(Mapping[str, Any] | None, info.context)
        folder = None if context is None else context.get("folder")
        return path if folder is None or path.startswith("~") else os.path.normpath(Path(folder) / path)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        # Compared with the defaults: what `config resolve` writes has every field.
        fields = type(self).model_fields
        twice = [name for name in _IN_URL if getattr(self, name) != fields[name].default] if self.url is not None else []
        if twice:
            raise ValueError(f"url says it already: give {', '.join(twice)} there, or everything as fields and no url")
        server = None if self.url is None else parse_url(self.url.get_secret_value())
        if self.password_file is not None and (self.password is not None or (server is not None and server.password is not None)):
            raise ValueError("give the password once: by password_file, by password, or in the url")
        if self.nodes and not self.cluster:
            raise ValueError("nodes are of a cluster: set cluster: true, or leave them out")
        if self.cluster and (self.db or (server is not None and server.db)):
            raise ValueError("a cluster has the database 0 only: leave the number out")
        if not (self.tls or (server is not None and server.tls)):
            useless = [name for name in ("tls_ca_file", "tls_cert_file", "tls_key_file") if getattr(self, name) is not None]
            if useless or not self.tls_verify:
                raise ValueError(
                    f"{', '.join(useless) or 'tls_verify'} without TLS: set tls: true, or write rediss:// in the url"
                )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("a client's certificate needs its key: give tls_cert_file and tls_key_file, or neither")
        return self


def _refuse_mask(text: str) -> None:
    if is_mask(text):
        raise ValueError("the stars stand for a secret that was not shown: write the secret, or use password_file")
