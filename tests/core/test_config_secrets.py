"""What is shown of a configuration has no secrets in it, whichever plugin they belong to."""

import traceback

import pytest
from pydantic import Field, SecretStr, ValidationError, model_validator

from kvcache_core.config.load import load_config
from kvcache_core.config.secrets import MASK, is_secret_name, redacted, without_secrets
from kvcache_core.errors import InvalidConfigError
from kvcache_core.registry.descriptors import PluginOptions

SECRET = "hunter2"


class Options(PluginOptions):
    """A plugin's, with a secret whose name says nothing."""

    magic: SecretStr | None = None
    number: int = Field(default=1, gt=0)
    password: str | None = None

    @model_validator(mode="after")
    def _odd(self):
        if self.number == 13:
            raise ValueError("13 brings no luck")
        return self


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "pasword",
        "passphrase",
        "db_pwd",
        "secret_access_key",
        "api_key",
        "account-key",
        "session_token",
        "CREDENTIALS",
    ],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["path", "max_tokens", "device_tokens", "tls_key_file", "password_file", "username", "key_prefix", "url", "kind", ""]
)
def test_names_of_other_things(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  password: hunter2", "  password: *******"),
        ("\tpassword:\thunter2", "\tpassword:\t*******"),
        ('"password": "a, b"  # mine', '"password": **************'),
        ("{kind: x, secret: a, port: 1}", "{kind: x, secret: " + "*" * len("a, port: 1}")),
        ("url: redis://me:pw@host:1/0", "url: " + "*" * len("redis://me:pw") + "@host:1/0"),
        ("ulr: redis://me:pw@host", "ulr: redis://*****@host"),
        ("url: redis//me:pw@host", "url: " + "*" * len("redis//me:pw") + "@host"),
        ("ulr: redis://me:p w/#@host", "ulr: redis://********@host"),
        ('"url": "redis://me:p@ w%/@host:1"', '"url": "' + "*" * len("redis://me:p@ w%/") + '@host:1"'),
        ('"url": "redis//me:pw@host"', '"url": "' + "*" * len("redis//me:pw") + '@host"'),
        ("ulr: 'redis://me:pw'", "ulr: 'redis://*****'"),
        ("ulr: redis://:pw/0", "ulr: redis://*****"),
        ("ulr: redis://me:12pw", "ulr: redis://*******"),
        ("ulr: redis://me:1-pw", "ulr: redis://*******"),
        ("url: redis:/me:pw", "url: ************"),
        ("url: me:pw", "url: *****"),
        ("url: redis://host:1", "url: redis://host:1"),
        ('"url": "redis://host:99999", "port": 0', '"url": "redis://host:99999", "port": 0'),
        ("endpoint: http://[::1]:0/", "endpoint: http://[::1]:0/"),
        ("url: s3://bucket?a=b", "url: s3://bucket?a=b"),
        ("url: bucket", "url: bucket"),
        ("{url: null, port: 0}", "{url: null, port: 0}"),
        ("max_tokens: 5", "max_tokens: 5"),
        ("password_file: secret.txt", "password_file: secret.txt"),
        ("model: org/name@main", "model: org/name@main"),
        ("", ""),
    ],
)
def test_lines_are_shown_without_secrets_and_carets_stay_right(line, shown):
    assert redacted(line) == shown
    assert len(shown) == len(line)


@pytest.mark.parametrize(
    ("given", "where", "kind", "shown"),
    [
        ({"magic": 5}, ("magic",), "string_type", MASK),
        ({"magic": {"a": SECRET}}, ("magic",), "string_type", MASK),
        ({"pasword": SECRET}, ("pasword",), "extra_forbidden", MASK),
        ({"unknown": f"s3://me:{SECRET}@host"}, ("unknown",), "extra_forbidden", "s3://" + "*" * 10 + "@host"),
        ({"unknown": [{"password": SECRET}]}, ("unknown",), "extra_forbidden", [{"password": MASK}]),
        ({"number": 0, "magic": SECRET}, ("number",), "greater_than", 0),
        ({"number": 13, "magic": SECRET, "password": SECRET}, (), "value_error", {"number": 13, "magic": MASK, "password": MASK}),
    ],
)
def test_errors_keep_what_is_wrong_and_lose_what_is_secret(given, where, kind, shown):
    with pytest.raises(ValidationError) as caught:
        Options.model_validate(given)
    told = caught.value.errors(include_url=False)[0]["msg"]
    (detail,) = without_secrets(caught.value, Options).errors(include_url=False)
    assert (detail["loc"], detail["type"], detail["msg"], detail["input"]) == (where, kind, told, shown)
    shown_error = without_secrets(caught.value, Options)
    assert SECRET not in "".join(traceback.format_exception(shown_error)) + shown_error.json()


@pytest.mark.parametrize(
    "text",
    [
        "hicache:\n  - storage:\n      password: hunter2\n",
        "hicache: [{storage: {kind: file, password: hunter2}}]\n",
        "hicache:\n  storage:\n    - kind: file\n      password: hunter2\n",
        "hicache: redis://me:hunter2\n",
        "page_size:\n  password: hunter2\n",
        "cache_type:\n  - api_key: hunter2\n",
        "hicache:\n  ratio:\n    token: hunter2\n",
    ],
)
def test_what_stands_in_the_wrong_place_is_shown_without_its_secrets(tmp_path, text):
    """A dash too many makes a list of a mapping: what is wrong then is everything in it."""
    file = tmp_path / "cache.yaml"
    file.write_text(text)
    with pytest.raises(InvalidConfigError) as caught:
        load_config(file)
    assert SECRET not in str(caught.value)
