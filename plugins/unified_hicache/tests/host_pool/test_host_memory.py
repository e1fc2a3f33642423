"""Limits as the kernel writes them, in a folder of its own, and the error of a pool that does not fit."""

import resource

import pytest

from kvcache_core.errors import ConfigError
from kvcache_unified_hicache.host_memory import MemoryRoom, memory_rooms, require_host_memory

GIB = 1 << 30


@pytest.fixture
def system(tmp_path):
    """Writes files below a root folder: {path: text}. A machine of 64 GiB, 48 of them free, in no group."""

    def write(files):
        machine = {
            "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: {9 << 20} kB\nMemAvailable: {48 << 20} kB\nHugePages_Total: 0\n"
        }
        for name, text in {**machine, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return memory_rooms(tmp_path)

    return write


def free(rooms):
    return [room.free / GIB for room in rooms]


def test_a_machine_without_limits(system):
    rooms = system({})
    assert free(rooms) == [48]
    assert rooms[0].limit == 64 * GIB
    assert "/proc/meminfo" in rooms[0].source


def test_cgroup_v2_counts_cache_as_free(system):
    rooms = system(
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/pod/box/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/pod/box/memory.stat": f"anon 17\ninactive_file {2 * GIB}\nactive_file 3\n",
        }
    )
    assert free(rooms) == [5, 48]
    assert rooms[0].limit == 8 * GIB
    assert rooms[0].source.endswith("pod/box/memory.max)")


def test_a_group_further_up_may_be_tighter(system):
    rooms = system(
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/pod/box/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
        }
    )
    assert free(rooms) == [1, 48]


def test_a_container_that_sees_its_own_group_at_the_top(system):
    rooms = system(
        {
            "proc/self/cgroup": "0::/system.slice/outside-of-the-container\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        }
    )
    assert free(rooms) == [0, 48]


def test_cgroup_v1(system):
    rooms = system(
        {
            "proc/self/cgroup": "12:pids:/x\n5:cpu,memory:/docker/abc\n1:name=systemd:/y\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{16 * GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{10 * GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.stat": f"inactive_file 5\ntotal_inactive_file {4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{30 * GIB}\n",
        }
    )
    assert free(rooms) == [10, 48]


def test_a_limited_address_space(system, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (6 * GIB, 7 * GIB))
    rooms = system({"proc/self/statm": f"{2 * GIB // resource.getpagesize()} 5 5 5 0 5 0\n"})
    assert free(rooms) == [4, 48]
    assert "ulimit -v" in rooms[0].source


def test_a_system_that_tells_nothing(tmp_path):
    assert memory_rooms(tmp_path) == []
    require_host_memory(1 << 50, ("hicache", "ratio"), [])


def test_this_system_tells_something():
    rooms = memory_rooms()
    assert rooms
    assert all(0 <= room.free <= room.limit for room in rooms)
    assert rooms == sorted(rooms)


def test_what_does_not_fit_names_limit_need_and_setting():
    rooms = [MemoryRoom(3 * GIB, 4 * GIB, "the cgroup's memory limit (x)"), MemoryRoom(9 * GIB, 9 * GIB, "the machine")]
    require_host_memory(3 * GIB, ("hicache", "ratio"), rooms)
    with pytest.raises(ConfigError) as caught:
        require_host_memory(3 * GIB + GIB // 2, ("hicache", "host_bytes"), rooms)
    assert caught.value.path == ("hicache", "host_bytes")
    assert str(caught.value) == (
        "the host pools need 3.50 GiB, but the cgroup's memory limit (x) leaves 3.00 GiB of 4.00 GiB; "
        "lower hicache.host_bytes, or raise that limit"
    )
