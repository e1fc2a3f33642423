"""Ages and sizes on the command line: what is read, what is written, what is refused."""

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage.commands import units


@pytest.mark.parametrize("text", ["7", "d", "-1d", "7 weeks", "nan d", "1e9d", ""])
def test_an_age_that_is_none_is_refused(kvcache, text, capsys):
    with pytest.raises(SystemExit) as caught:
        kvcache("prune", f"--older-than={text}")
    assert caught.value.code == 2
    assert "such as 12h or 7d" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["10GB", "10 gigs", "-1", "1.5GiB", ""])
def test_a_size_that_is_none_is_refused(kvcache, text, capsys):
    with pytest.raises(SystemExit) as caught:
        kvcache("prune", f"--max-bytes={text}")
    assert caught.value.code == 2
    assert "KiB, MiB, GiB or TiB" in capsys.readouterr().err


def test_sizes_and_times_are_read_and_written():
    assert [units.size(text) for text in ("0", "3KiB", "10 GiB")] == [0, 3072, 10 * 2**30]
    assert [units.duration(text) for text in ("90s", "30m", "12h", "7d", "1.5d")] == [90, 1800, 43200, 604800, 129600]
    assert [units.size_text(n) for n in (0, 1023, 1024, 3 * 2**29, 2**51)] == ["0 B", "1023 B", "1 KiB", "1.5 GiB", "2048 TiB"]
    assert [units.size_text(n << 10) for n in (999, 1000, 1023)] == ["999 KiB", "1000 KiB", "1023 KiB"]
    assert units.duration_text(1234.5 * 86400) == "1234 d"
    assert [units.duration_text(n) for n in (0, 59, 3599, 7200, 129600)] == ["0 s", "59 s", "60 m", "2 h", "1.5 d"]
    assert [units.count_text(n, "page") for n in (0, 1, 2000)] == ["0 pages", "1 page", "2,000 pages"]


class TestFaultsOfUnits(PlantedFaultTests):
    faults = (
        Fault(
            "1.02e+03 KiB",
            test_sizes_and_times_are_read_and_written,
            Replacement(units, "_digits", "number < 999.5", "True"),
        ),
    )
