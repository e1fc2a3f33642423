"""How much memory this process may really take, and whether a host pool fits into it.

The machine's free memory is not the answer in a container: a cgroup ends the process at its own limit, and `ulimit -v` fails
its allocations. All of them are asked and the least counts. It knows no pools: sizes are numbers of bytes.
"""

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kvcache_core.errors import ConfigError

GIB: Final = 1 << 30
_UNLIMITED: Final = 1 << 60  # cgroup v1 writes "no limit" as the largest multiple of a page below 2**63


class MemoryRoom(NamedTuple):
    """`free`: bytes that the process can still take before `source` says no. `limit`: that source's limit as a whole."""

    free: int
    limit: int
    source: str


def memory_rooms(root: Path = Path("/")) -> list[MemoryRoom]:
    """What each limit of this process leaves, the tightest first. Empty where the system tells nothing (not Linux).

    Memory that the kernel takes back when it is needed (page cache) counts as free. `root` is where `proc` and `sys` are.
    """
    rooms = [*_of_machine(root), *_of_address_space(root)]
    lines = _text(root / "proc/self/cgroup").splitlines()
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            rooms += _of_groups(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            rooms += _of_groups(root / "sys/fs/cgroup/memory", path, *names)
    return sorted(set(rooms))


def require_host_memory(need: int, setting: Sequence[str], rooms: Sequence[MemoryRoom]) -> None:
    """Raises ConfigError, naming the limit, the need and the `setting` to change, when `need` bytes do not fit into all
    `rooms`."""
    if not rooms or need <= rooms[0].free:
        return
    tightest = rooms[0]
    raise ConfigError(
        f"the host pools need {_gib(need)}, but {tightest.source} leaves {_gib(tightest.free)} of {_gib(tightest.limit)}; "
        f"lower {'.'.join(setting)}, or raise that limit",
        path=tuple(setting),
    )


def _of_machine(root: Path) -> list[MemoryRoom]:
    fields = dict(line.split(":", 1) for line in _text(root / "proc/meminfo").splitlines() if ":" in line)
    kib = {name: int(value.split()[0]) for name, value in fields.items() if value.split()[:1] and value.split()[0].isdigit()}
    if "MemAvailable" not in kib or "MemTotal" not in kib:
        return []
    return [MemoryRoom(kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024, "the machine's memory (/proc/meminfo)")]


def _of_address_space(root: Path) -> list[MemoryRoom]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _text(root / "proc/self/statm").split()
    if limit == resource.RLIM_INFINITY or not used:
        return []
    return [MemoryRoom(max(0, limit - int(used[0]) * resource.getpagesize()), limit, "the address space limit (ulimit -v)")]


def _of_groups(mount: Path, path: str, limit_name: str, usage_name: str, cache_name: str) -> list[MemoryRoom]:
    """The group and all groups above it: each may set a limit. Inside a container, the path that the kernel names is often not
    below the mount, which then shows the container's own group at its top."""
    rooms: list[MemoryRoom] = []
    folder = mount / path.lstrip("/")
    for group in (folder, *folder.parents):
        if group != mount and mount not in group.parents:
            break
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        stat = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
        taken = max(0, usage - int(stat.get(cache_name, "0")))
        rooms.append(MemoryRoom(max(0, limit - taken), limit, f"the cgroup's memory limit ({group / limit_name})"))
    return rooms


def _text(path: Path) -> str:
    """Empty when the file is not there or may not be read: then this source sets no limit that could be known."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """None for a missing file and for cgroup v2's "max"."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"
