"""Unfinished pages: those of the living stay, those of the dead are swept (FAULTS S3)."""

from pathlib import Path

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_storage_file import member
from kvcache_storage_file.session import Session


def test_another_openers_unfinished_pages_are_not_swept(root):
    writer = root.open()
    temporary = Path(writer._opened._session.member.temporary())
    temporary.write_bytes(b"half a page")
    other = root.open()
    assert other.temporaries_swept == 0
    assert temporary.exists()


def test_what_a_killed_process_left_is_counted_and_swept(root):
    root.open().close()
    for name in ("0123456789abcdef", "fedcba9876543210"):
        folder = root.path / ".kvcache" / name
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "0.tmp").write_bytes(b"half a page")
        (folder / "1.tmp").write_bytes(b"")
    (root.path / ".kvcache" / "killed-before-its-lock").mkdir()
    storage = root.open()
    assert storage.temporaries_swept == 4
    assert root.temporaries() == []
    assert len([path for path in (root.path / ".kvcache").iterdir() if path.is_dir()]) == 1
    assert root.open().temporaries_swept == 0


class TestFaultsOfTemporaries(PlantedFaultTests):
    faults = (
        Fault(
            "the living are swept",
            test_another_openers_unfinished_pages_are_not_swept,
            Replacement(member, "_unowned", "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),
        ),
        Fault(
            "the dead are not swept",
            test_what_a_killed_process_left_is_counted_and_swept,
            Replacement(Session, "__init__", "list(sweep(private))", "[]"),
        ),
    )
