"""The whole kit for storage backends on MooncakeStorage, a real master and a holder in a process of its own."""

import hashlib

import pytest

from kvcache_conformance.storage_tests import InstalledStorageTests


class TestMooncakeStorage(InstalledStorageTests):
    kind = "mooncake"
    machine_examples = 10

    @pytest.fixture(autouse=True)
    def _serve(self, servers):
        self.master, _ = servers

    def options(self, place):
        prefix = hashlib.sha256(str(place).encode()).hexdigest()[:16]
        patient = {"timeout": 30.0}  # the usual four seconds are short for a busy machine
        return {**self.master.options(), "key_prefix": f"{prefix}/", "buffer_bytes": 2**24, **patient}
