"""What may stand beside `kind: object`. It knows only what is possible, nothing of any server."""

import os
import re
from collections.abc import Mapping
from typing import Any, Self, cast

from pydantic import ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from kvcache_core.registry.descriptors import PluginOptions
from kvcache_storage_object.address import Address, Service, check_endpoint, parse_address

_SERVICE_OF: Mapping[str, tuple[Service, ...]] = {
    "endpoint": ("s3", "azure"),
    "region": ("s3",),
    "access_key_id": ("s3",),
    "secret_access_key": ("s3",),
    "session_token": ("s3",),
    "virtual_hosted": ("s3",),
    "account_key": ("azure",),
    "sas_token": ("azure",),
    "service_account": ("gcs",),
}


_PRINTABLE = re.compile(r"[\x21-\x7e]+")


class ObjectOptions(PluginOptions):
    """Options of ObjectStorage. Where no credentials are given they come from where the service's SDK looks for them: environment
    variables, the workload's or the machine's identity."""

    model_config = ConfigDict(strict=True, validate_default=True, hide_input_in_errors=True)

    url: str = Field(description="the bucket: s3://bucket[/prefix], gs://bucket[/prefix] or az://account/container[/prefix]")
    endpoint: str | None = Field(
        default=None,
        description="server of an S3-compatible store, http://host:port; null: the service's own, or AWS_ENDPOINT_URL",
    )
    region: str | None = Field(default=None, min_length=1, description="S3: the region; null: AWS_REGION, or us-east-1")
    access_key_id: str | None = Field(default=None, min_length=1, description="S3: name of the access key")
    secret_access_key: SecretStr | None = Field(default=None, min_length=1, description="S3: the access key itself")
    session_token: SecretStr | None = Field(default=None, min_length=1, description="S3: token of temporary credentials")
    account_key: SecretStr | None = Field(default=None, min_length=1, description="Azure: key of the storage account")
    sas_token: SecretStr | None = Field(default=None, min_length=1, description="Azure: shared access signature")
    service_account: str | None = Field(
        default=None, min_length=1, description="Google: key file of a service account; relative to the configuration's folder"
    )
    anonymous: bool = Field(default=False, description="send no credentials and look for none")
    virtual_hosted: bool = Field(default=False, description="S3: the bucket is part of the host's name, not of the path")
    bulk_delete: bool = Field(default=True, description="S3: remove up to 1000 pages a request; some compatible stores cannot")
    workers: int = Field(default=16, ge=1, le=256, description="requests at a time")
    timeout: float = Field(
        default=4.0, gt=0, le=600, allow_inf_nan=False, description="seconds for a batch; keep it below hicache.storage_timeout"
    )
    connect_timeout: float = Field(
        default=1.0, gt=0, le=600, allow_inf_nan=False, description="seconds for a connection to be made"
    )
    retries: int = Field(default=2, ge=0, le=10, description="further tries of a request that failed by chance")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        parse_address(url)
        return url

    @field_validator("endpoint")
    @classmethod
    def _is_server(cls, endpoint: str | None) -> str | None:
        return None if endpoint is None else check_endpoint(endpoint)

    @field_validator("region", "access_key_id", "secret_access_key", "session_token", "account_key", "sas_token")
    @classmethod
    def _fits_into_a_header(cls, value: str | SecretStr | None) -> str | SecretStr | None:
        """The library ends a thread over one that does not."""
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and _PRINTABLE.fullmatch(text) is None:
            raise ValueError("must be letters, digits and signs without spaces; is there a line break at its end?")
        return value

    @field_validator("service_account")
    @classmethod
    def _beside_the_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        context = cast(Mapping[str, Any] | None, info.context)
        folder = None if context is None else context.get("folder")
        if path is None or folder is None or path.startswith("~"):
            return path
        return os.path.normpath(os.path.join(folder, path))  # noqa: PTH118

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        service = self.address.service
        for name, services in _SERVICE_OF.items():
            if service not in services and getattr(self, name) not in (None, False):
                raise ValueError(f"'{name}' is an option for {' and '.join(services)}, and the url is one of {service}")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("'access_key_id' and 'secret_access_key' belong together: give both or none")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("'session_token' belongs to an 'access_key_id'")
        if self.account_key is not None and self.sas_token is not None:
            raise ValueError("'account_key' and 'sas_token' are two ways to say the same thing; give one of them")
        if self.anonymous and self.credentials:
            raise ValueError("'anonymous' means that no credentials are sent, but some are given")
        return self

    @property
    def address(self) -> Address:
        return parse_address(self.url)

    @property
    def credentials(self) -> list[str]:
        """The names of the options that say who asks, as far as they are given."""
        named = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token", "service_account")
        return [name for name in named if getattr(self, name) is not None]

    @property
    def secrets(self) -> list[str]:
        """The values that must never be shown."""
        kept = (self.secret_access_key, self.session_token, self.account_key, self.sas_token)
        return [secret.get_secret_value() for secret in kept if secret is not None]
