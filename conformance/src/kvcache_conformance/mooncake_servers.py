"""Mooncake Store for tests: a master, and processes that hold pages in their memory.

All listen on every interface whatever they are told, so it is for machines that nobody else reaches. It knows the options of
kvcache-storage-mooncake by their names.
"""

from collections.abc import Sequence
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from kvcache_conformance.server_process import LOOPBACK, ServerProcess, accepts, free_port, missing_server


@final
class MooncakeMaster(ServerProcess):
    """Knows where pages are, and holds none: one that is started again has forgotten all."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        """`flags`: besides those that say where it listens. Skips the test where the server is not installed."""
        self.port = free_port()
        command = [_program("mooncake_master"), f"--rpc_port={self.port}", f"--rpc_address={LOOPBACK}"]
        command += [f"--metrics_port={free_port()}", f"--metrics_host={LOOPBACK}", *flags]
        super().__init__(command, folder, lambda: accepts(self.port))

    def options(self) -> dict[str, Any]:
        """What stands beside `kind: mooncake`."""
        return {"master": f"{LOOPBACK}:{self.port}", "hostname": LOOPBACK}


@final
class MooncakeHolder(ServerProcess):
    """A process that adds `megabytes` of its memory to the store of `master`."""

    def __init__(self, folder: Path, master: MooncakeMaster, megabytes: int) -> None:
        port = free_port()
        command = [_program("mooncake_client"), f"--host={LOOPBACK}", f"--port={port}", "--protocol=tcp"]
        command += ["--metadata_server=P2PHANDSHAKE", f"--master_server_address={LOOPBACK}:{master.port}"]
        command += [f"--global_segment_size={megabytes}MB"]
        super().__init__(command, folder, lambda: accepts(port))


def _program(name: str) -> str:
    found = find_spec("mooncake")
    if found is None or found.origin is None:
        missing_server(f"there is no {name}: pip install mooncake-transfer-engine-non-cuda")
    if find_library("ibverbs") is None:
        missing_server(f"{name} needs a library of the system: apt-get install libibverbs1 librdmacm1 libnuma1 liburing2")
    return str(Path(found.origin).with_name(name))
