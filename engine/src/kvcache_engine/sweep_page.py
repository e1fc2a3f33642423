"""A sweep as one HTML page: plots as inline SVG and the table behind them. No script, nothing from outside, light and dark."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kvcache_engine.report import bytes_text, seconds_text, tier_text

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 44

_STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --soft: #6b7280; --line: #d5d9de; --bg: #ffffff;
  --device: #3465a4; --host: #e08a1e; --storage: #4e9a4e; --median: #3465a4; --p90: #a4307a; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e8eb; --soft: #9aa4b0; --line: #3a4149; --bg: #14171a;
  --device: #77a7e0; --host: #f2ab55; --storage: #86c786; --median: #77a7e0; --p90: #e18cc4; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p, figcaption { color: var(--soft); }
figure { margin: 0; } svg { width: 100%; max-width: 44rem; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--fg); }
.grid { stroke: var(--line); stroke-width: 1; } .curve { fill: none; stroke-width: 2.5; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .35em 0 1em; vertical-align: baseline; }
"""


def sweep_page(report: Mapping[str, Any]) -> str:
    """The page for the JSON of `kvcache sweep`; it may have no points."""
    points: Sequence[Mapping[str, Any]] = report["points"]
    l1 = points[0]["tiers"]["device"] if points else None
    about = [f"Model {report['model']['id']}, page size {report['page_size']} tokens"]
    if l1 is not None:
        about.append(tier_text("device", l1))
        about.append(f"{points[0]['requests']} requests with {points[0]['prompt_tokens']} prompt tokens")
    if report["interrupted"]:
        about.append("interrupted: the ratios that were complete are shown")
    body = [f"<h1>Hit rate and time to first token over the size of L2</h1>\n<p>{escape('; '.join(about))}.</p>"]
    if points:
        body.append("<h2>Hit rate by tier</h2>" + _key({"device": "device (L1)", "host": "host (L2)", "storage": "storage (L3)"}))
        body.append(_figure(_rates(points), "Share of the prompt tokens that were not computed, over L2 as a multiple of L1."))
        body.append("<h2>Time to first token</h2>" + _key({"median": "median", "p90": "90 % of the requests stay below"}))
        body.append(
            _figure(_times(points), "Seconds from queueing to the first token; waiting for other requests is part of it.")
        )
        body.append("<h2>Figures</h2>\n" + _table(points))
    for failure in report["failures"]:
        body.append(f"<p>Ratio {failure['ratio']:g} could not be served: {escape(failure['error'])}</p>")
    parts = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>kvcache sweep</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{parts}\n</body>\n</html>\n"
    )


def _rates(points: Sequence[Mapping[str, Any]]) -> str:
    """Stacked bars, one for each ratio."""
    shapes = _axes(points, 1.0, lambda value: f"{value:.0%}")
    width = min(72.0, 0.6 * _step(points))
    for i, point in enumerate(points):
        bottom = 0.0
        for tier in ("device", "host", "storage"):
            rate: float = point["hit_rates"][tier]
            if rate:
                top = _y(bottom + rate, 1.0)
                shapes.append(
                    f'<rect x="{_x(i, points) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}"'
                    f' height="{_y(bottom, 1.0) - top:.1f}" fill="var(--{tier})">'
                    f"<title>ratio {point['ratio']:g}: {tier} {rate:.1%}</title></rect>"
                )
            bottom += rate
        shapes.append(f'<text x="{_x(i, points):.1f}" y="{_y(bottom, 1.0) - 5:.1f}" text-anchor="middle">{bottom:.0%}</text>')
    return "\n".join(shapes)


def _times(points: Sequence[Mapping[str, Any]]) -> str:
    """Two curves with a dot for each ratio."""
    fields = {"median": "ttft_median_s", "p90": "ttft_p90_s"}
    top = max((point[field] or 0.0 for point in points for field in fields.values()), default=0.0) * 1.1 or 1.0
    shapes = _axes(points, top, seconds_text)
    for name, field in fields.items():
        known = [(i, point) for i, point in enumerate(points) if point[field] is not None]
        path = " ".join(f"{_x(i, points):.1f},{_y(point[field], top):.1f}" for i, point in known)
        shapes.append(f'<polyline class="curve" points="{path}" stroke="var(--{name})"/>')
        for i, point in known:
            shapes.append(
                f'<circle cx="{_x(i, points):.1f}" cy="{_y(point[field], top):.1f}" r="4" fill="var(--{name})">'
                f"<title>ratio {point['ratio']:g}: {name} {seconds_text(point[field])}</title></circle>"
            )
    return "\n".join(shapes)


def _axes(points: Sequence[Mapping[str, Any]], top: float, label: Any) -> list[str]:
    """Lines at five heights from 0 to `top`, and the ratios, evenly spaced, below them."""
    shapes: list[str] = []
    for part in range(5):
        value, y = top * part / 4, _y(top * part / 4, top)
        shapes.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label(value))}</text>')
    for i, point in enumerate(points):
        x = f"{_x(i, points):.1f}"
        shapes.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{point["ratio"]:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    shapes.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">ratio (L2 / L1)</text>')
    return shapes


def _table(points: Sequence[Mapping[str, Any]]) -> str:
    names = (
        "ratio",
        "L2",
        "hit rate",
        "device",
        "host",
        "storage",
        "TTFT median",
        "TTFT 90 %",
        "to L2",
        "from L2",
        "dropped tokens",
    )
    rows = ["".join(f"<th>{escape(name)}</th>" for name in names)]
    for point in points:
        host = point["tiers"].get("host")
        cells = (
            f"{point['ratio']:g}",
            "-" if host is None else bytes_text(host["bytes"]),
            f"{point['hit_rate']:.1%}",
            *(f"{point['hit_rates'][tier]:.1%}" for tier in ("device", "host", "storage")),
            seconds_text(point["ttft_median_s"]),
            seconds_text(point["ttft_p90_s"]),
            bytes_text(point["movements"]["d2h"]["bytes"]),
            bytes_text(point["movements"]["h2d"]["bytes"]),
            str(sum(point["dropped"].values())),
        )
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    return '<div class="scroll"><table>\n' + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table></div>"


def _figure(shapes: str, caption: str) -> str:
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(caption)}">\n{shapes}\n</svg>'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _key(names: Mapping[str, str]) -> str:
    parts = (f'<span class="key" style="background:var(--{color})"></span>{escape(text)}' for color, text in names.items())
    return f"\n<div>{''.join(parts)}</div>\n"


def _step(points: Sequence[Mapping[str, Any]]) -> float:
    return (_WIDTH - _LEFT - _RIGHT) / len(points)


def _x(i: int, points: Sequence[Mapping[str, Any]]) -> float:
    return _LEFT + (i + 0.5) * _step(points)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)
