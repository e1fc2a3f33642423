"""Our flags on sgl-jax's command line: after a prefix, out of its way, reported with ours."""

import pickle

import pytest

from kvcache_core.config.load import load_config
from kvcache_core.errors import InvalidConfigError
from kvcache_sgl_jax.flags import read_command_line
from kvcache_sgl_jax.install import SchedulerProcess


def test_sgl_jax_gets_its_own_flags_in_their_order():
    line = read_command_line(
        [
            "--model-path",
            "m",
            "--kvcache-config",
            "c.yaml",
            "--hicache-ratio",
            "3",
            "--kvcache-hicache-ratio",
            "4",
            "--page-size=16",
        ]
    )
    assert line.rest == ["--model-path", "m", "--hicache-ratio", "3", "--page-size=16"]
    assert str(line.config) == "c.yaml"
    assert load_config(None, line.overrides).config.hicache.ratio == 4.0


def test_flags_of_ours_win_over_the_file(tmp_path):
    path = tmp_path / "cache.yaml"
    path.write_text("cache_type: radix_cache\nhicache: {ratio: 2}\n")
    line = read_command_line(
        ["--kvcache-config", str(path), "--kvcache-cache-type=unified_radix_cache", "--kvcache-set", "hicache.backup_on=evict"]
    )
    config = load_config(line.config, line.overrides).config
    assert (config.cache_type, config.hicache.ratio, config.hicache.backup_on) == ("unified_radix_cache", 2.0, "evict")


def test_without_flags_everything_is_sgl_jax_s():
    assert read_command_line(["--model-path", "m", "--set"]) == (None, (), ["--model-path", "m", "--set"])


def test_an_unknown_flag_of_ours_never_reaches_sgl_jax(capsys):
    with pytest.raises(SystemExit) as caught:
        read_command_line(["--model-path", "m", "--kvcache-hicash-ratio", "4"])
    assert caught.value.code == 2
    assert "--kvcache-hicash-ratio" in capsys.readouterr().err


def test_a_wrong_value_names_the_flag_as_it_was_written():
    line = read_command_line(["--kvcache-hicache-ratio", "much", "--kvcache-set", "hicache.nonsense=1"])
    with pytest.raises(InvalidConfigError) as caught:
        load_config(line.config, line.overrides)
    assert "--kvcache-hicache-ratio" in str(caught.value)
    assert "--kvcache-set hicache.nonsense" in str(caught.value)


def test_what_was_asked_for_travels_to_the_scheduler_s_process(tmp_path, monkeypatch):
    (tmp_path / "cache.yaml").write_text("cache_type: radix_cache\nhicache: {storage: file}\n")
    monkeypatch.chdir(tmp_path)
    line = read_command_line(["--kvcache-config", "cache.yaml", "--kvcache-cache-type", "unified_radix_cache"])
    storage = read_command_line(["--kvcache-hicache-storage-path", "pages", "--kvcache-set", "hicache.ratio=3"])
    sent = SchedulerProcess.of(line.config, line.overrides + storage.overrides)
    got = pickle.loads(pickle.dumps(sent))
    monkeypatch.chdir("/")
    config = load_config(got.config, got.overrides).config
    assert (config.cache_type, config.hicache.storage.kind, config.hicache.ratio) == ("unified_radix_cache", "file", 3.0)
    assert "pages" in str(config.hicache.storage)
    assert SchedulerProcess.of(None, ()) == SchedulerProcess(None, ())


def test_help_shows_our_flags_alone(capsys):
    with pytest.raises(SystemExit) as caught:
        read_command_line(["--kvcache-help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "--kvcache-hicache-write-policy" in said
    assert "--model-path" not in said
