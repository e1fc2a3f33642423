"""`kvcache sweep` as its user meets it: points, table, JSON, page, bad ratios, Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from kvcache_core.cli import main
from kvcache_engine.sweep_page import sweep_page

CONFIG = """\
page_size: 16
engine:
  model: {model}
  prompts: prompts.jsonl
  device_tokens: 160
  chunk_tokens: 32
  max_running: 1
  max_tokens: 4
  compilation_cache: null
"""
TEXTS = [
    "the first reader's long question about ferries, tides and the moon",
    "another one's about a telescope, a cat and some tea",
]


@pytest.fixture
def config(tmp_path, qwen3_folder):
    """Two texts in turn, several times: too much for L1 together."""
    prompts = [{"id": f"{turn}.{i}", "prompt": 2 * text} for turn in range(3) for i, text in enumerate(TEXTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    path = tmp_path / "cache.yaml"
    path.write_text(CONFIG.format(model=qwen3_folder), encoding="utf-8")
    return path


def test_larger_l2_more_hits_and_every_form_of_the_result(config, capsys):
    out, page = config.parent / "out" / "sweep.json", config.parent / "out" / "sweep.html"
    assert main(["sweep", str(config), "--ratios", "4,0,0.2", "--json", str(out), "--html", str(page)]) == 0
    data = json.loads(out.read_text(encoding="utf-8"))
    points = data["points"]
    assert [point["ratio"] for point in points] == [0, 0.2, 4]
    assert [point["tiers"].get("host", {}).get("pages") for point in points] == [None, 2, 40]
    assert {point["cache_type"] for point in points} == {"unified_radix_cache"}
    rates = [point["hit_rates"] for point in points]
    assert rates[0]["host"] == 0
    assert rates[2]["host"] > 0.3
    assert points[2]["hit_rate"] > points[0]["hit_rate"] + 0.3
    for point in points:
        assert point["requests"] == 6
        assert point["errors"] == 0
        assert sum(point["hit_rates"].values()) == pytest.approx(point["hit_rate"])
        assert point["computed_tokens"] == pytest.approx(point["prompt_tokens"] * (1 - point["hit_rate"]))
        assert 0 < point["ttft_median_s"] <= point["ttft_p90_s"] < 60
    assert points[2]["movements"]["h2d"]["bytes"] > 0 == points[0]["movements"]["h2d"]["bytes"]
    printed = capsys.readouterr()
    assert "TTFT median" in printed.out
    assert f"{points[2]['hit_rate']:.1%}" in printed.out
    for what in ("warm-up", "ratio 0:", "ratio 0.2:", "ratio 4:", "warning: L2 holds 2 pages"):
        assert what in printed.err
    assert f"{points[2]['hit_rate']:.1%}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ("1,two", "numbers with commas"),
        ("1,-2", "0 or more"),
        ("1,nan", "0 or more"),
        ("2,1,2", "each ratio once"),
        ("", "numbers"),
    ],
)
def test_ratios_that_are_none(config, capsys, ratios, text):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(config), "--ratios", ratios])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--cache-type", "radix_cache"], "no tiers"),
        (["--ratios", "0.001"], "leaves no page"),
        (["--json", "/dev/null/out.json"], "--json"),
        (["--html", "/dev/null/out.html"], "--html"),
        (["--json", "-", "--html", "-"], "standard output; give one of them a file"),
    ],
)
def test_a_sweep_that_cannot_start_exits_2_without_a_traceback(config, capsys, flags, text):
    assert main(["sweep", str(config), *flags]) == 2
    printed = capsys.readouterr()
    assert text in printed.err
    assert "Traceback" not in printed.err


def test_a_ratio_that_cannot_be_served_takes_nothing_from_the_others(config, capsys):
    out, page = config.parent / "sweep.json", config.parent / "sweep.html"
    assert main(["sweep", str(config), "--ratios", "0.001,1,1e9", "--json", str(out), "--html", str(page)]) == 1
    data = json.loads(out.read_text(encoding="utf-8"))
    assert [point["ratio"] for point in data["points"]] == [1]
    assert [failure["ratio"] for failure in data["failures"]] == [0.001, 1e9]
    assert "leaves no page" in data["failures"][0]["error"]
    assert "leaves no page" in page.read_text(encoding="utf-8")
    printed = capsys.readouterr()
    assert "TTFT median" in printed.out
    for ratio in ("0.001", "1e+09"):
        assert f"ratio {ratio} could not be served: " in printed.err


def test_a_sweep_in_front_of_a_storage(config):
    out = config.parent / "sweep.json"
    flags = ["--hicache-storage", "file", "--hicache-storage-path", "store", "--set", "hicache.prefetch_threshold=16"]
    assert main(["sweep", str(config), "--ratios", "1,4", "--json", str(out), *flags]) == 0
    points = json.loads(out.read_text(encoding="utf-8"))["points"]
    assert all(point["hit_rates"]["storage"] > 0 for point in points)  # from the warm-up
    assert all(point["movements"]["fetch"]["bytes"] > 0 for point in points)


def test_what_no_ratio_changes_is_found_before_the_model_is_loaded(config, capsys):
    assert main(["sweep", str(config), "--cache-type", "radix_cache", "--ratios", "0,1"]) == 2
    printed = capsys.readouterr()
    assert "no tiers" in printed.err
    assert "reading tensors" not in printed.err


def test_ctrl_c_keeps_the_ratios_that_were_complete(config):
    out = config.parent / "sweep.json"
    code = "import sys; from kvcache_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "sweep", str(config), "--json", str(out), "--ratios", "1,2,3", "--no-warm-up"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("ratio 2:"):
                process.send_signal(signal.SIGINT)
                break
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    data = json.loads(out.read_text(encoding="utf-8"))
    assert data["interrupted"]
    assert [point["ratio"] for point in data["points"]] == [1]
    assert "TTFT median" in stdout


class Page(HTMLParser):
    """Collects tags and whatever names something outside."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]


def point(ratio, host):
    movement = {"bytes": 1024, "seconds": 0.1, "bytes_per_s": 10240.0}
    return {
        "ratio": ratio,
        "requests": 3,
        "prompt_tokens": 100,
        "hit_rates": {"device": 0.5, "host": host, "storage": 0.0},
        "hit_rate": 0.5 + host,
        "ttft_median_s": 0.2,
        "ttft_p90_s": None,
        "tiers": {"device": {"pages": 4, "units": {"full": 4}, "bytes": 4096}},
        "movements": {"d2h": movement, "h2d": movement},
        "dropped": {},
    }


@pytest.mark.parametrize("points", [[], [point(0, 0.0)], [point(0.5, 0.1), point(1, 0.25)]])
def test_the_page_needs_nothing_from_outside(points):
    report = {"model": {"id": "<b>&"}, "page_size": 16, "interrupted": not points, "points": points, "failures": []}
    text = sweep_page(report)
    page = Page()
    page.feed(text)
    assert page.outside == []
    assert "script" not in page.tags
    assert not re.search(r"https?:|@import|url\(", text)
    assert "&lt;b&gt;&amp;" in text
    assert "prefers-color-scheme: dark" in text
    assert page.tags.count("svg") == (2 if points else 0)
    # A bar for each tier that gave something, a dot for each known time, a row for each ratio beside the head.
    assert page.tags.count("rect") == sum(rate > 0 for p in points for rate in p["hit_rates"].values())
    assert page.tags.count("circle") == len(points)
    assert page.tags.count("tr") == (len(points) + 1 if points else 0)


def test_help_has_examples_and_does_not_import_jax():
    code = (
        "import sys; from kvcache_core.cli import main\n"
        "try: main(['sweep', '--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "kvcache sweep examples/hicache.yaml --ratios 0,0.5,1,2,4" in done.stdout
    assert " ".join(done.stdout.split()).count("missing folders are made") == 2
