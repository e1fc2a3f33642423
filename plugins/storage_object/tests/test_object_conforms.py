"""The whole kit for storage backends on ObjectStorage and a real server, with a client of the test's own as raw access."""

import hashlib

import obstore
import pytest
from obstore.store import S3Store

from kvcache_conformance.storage_kit import RawStorage
from kvcache_conformance.storage_tests import InstalledStorageTests


class RawObjects(RawStorage):
    """The objects of one scope, found by their names."""

    def __init__(self, client: S3Store, folder: str) -> None:
        self.client = client
        self.folder = folder

    def read(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self.client, self._name(key)).bytes())
        except FileNotFoundError:
            return None

    def write(self, key: str, value: bytes) -> None:
        obstore.put(self.client, self._name(key), value)

    def remove(self, key: str) -> None:
        obstore.delete(self.client, self._name(key))

    def _name(self, key: str) -> str:
        return f"{self.folder}/{key[:2]}/{key}"


class TestObjectStorage(InstalledStorageTests):
    kind = "object"
    machine_examples = 15

    @pytest.fixture(autouse=True)
    def _serve(self, server, client):
        self.server, self.client = server, client

    def options(self, place):
        return self.server.options(prefix_of(place)) | {"timeout": 30.0}  # the usual four seconds are short for a busy machine

    def raw(self, place, scope):
        return RawObjects(self.client, f"{prefix_of(place)}/{scope.model_id}/{scope.page_size}")


def prefix_of(place) -> str:
    return hashlib.sha256(str(place).encode()).hexdigest()[:16]
