"""A page of charts as one HTML file that loads nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Any

_COLOURS = 8
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_PAGE = resources.files("pubsub.pipeline") / "report_page"
# The library of the charts and the functions around it are those of the dashboard.
_DASHBOARD = resources.files("pubsub.http_api") / "dashboard"
_UPLOT = _DASHBOARD / "vendor" / "uplot"
_EXPORT = "export { uPlot as default };"


@dataclass(frozen=True, slots=True)
class Chart:
    """Series by name over the times of the page; ``kind`` is area (stacked), line or bar.

    ``unit`` is B, B/s, ms, 1/s, or empty for whole numbers.
    """

    title: str
    times: Sequence[datetime]
    series: Mapping[str, Sequence[Any]]
    kind: str
    unit: str = ""

    def data(self) -> dict[str, Any]:
        """Return the chart as the script of the page takes it.

        ``drawn`` are the heights of a series: in a stack they include the series after it. So the
        first series is the highest, and is drawn before the others, which its area would cover.
        """
        found: list[dict[str, Any]] = []
        below: list[Any] = [0] * len(self.times)
        for index, (name, values) in reversed(list(enumerate(self.series.items()))):
            rounded = [_rounded(value) for value in values]
            if self.kind == "area":
                below = [_rounded(sum(pair)) for pair in zip(below, rounded, strict=True)]
            drawn = below if self.kind == "area" else rounded
            found.append({"name": name, "colour": colour(index), "values": rounded, "drawn": drawn})
        return {"kind": self.kind, "unit": self.unit, "series": found[::-1]}


def _rounded(value: Any) -> Any:
    """Return a number with the digits that can be seen; None stays."""
    return round(value, 2) if isinstance(value, float) else value


def colour(index: int) -> str:
    """Return the variable of the colour of a series; those beyond the palette share one."""
    return f"--line-{index if index < _COLOURS else 'other'}"


def page(
    title: str,
    span: str,
    facts: Sequence[tuple[str, str]],
    charts: Sequence[Chart],
    table: Sequence[Sequence[str]],
) -> str:
    """Return the page. ``title`` and ``span`` are HTML; the first row of ``table`` is its head."""
    lines = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        # Without it, browsers request one from the server of the page.
        '<link rel="icon" href="data:,">',
        f"<style>{_style()}</style></head><body>",
        f'<h1>{title}</h1><p class="span">{span}</p>',
    ]
    if facts:
        shown = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in facts
        )
        lines.append(f'<dl class="facts">{shown}</dl>')
    described = [chart.data() for chart in charts]
    sections = map(_section, range(len(charts)), charts, described)
    lines.append(f'<main><div class="charts">{"".join(sections)}</div>')
    if table:
        lines.append(_table(table))
    lines.append("</main>")
    if charts:
        times = [round(time.timestamp(), 3) for time in charts[0].times]
        # Otherwise a name could close the script element.
        data = json.dumps({"times": times, "charts": described}).replace("<", "\\u003c")
        lines.append(f'<script type="application/json" id="charts">{data}</script>')
        lines.append(f'<script type="module">{_script()}</script>')
    lines.append("</body></html>\n")
    return "\n".join(lines)


def _style() -> str:
    return (_UPLOT / "uPlot.min.css").read_text() + (_PAGE / "report.css").read_text()


def _script() -> str:
    """Return one module: the library, and in a block, as both have names, the others."""
    library = (_UPLOT / "uPlot.esm.js").read_text().replace(_EXPORT, "")
    shared = (_DASHBOARD / "app" / "plot.js").read_text().replace("export function", "function")
    own = (_PAGE / "report.js").read_text()
    return f"{library}\n{{\n{shared}\n{own}}}\n"


def _section(number: int, chart: Chart, described: Mapping[str, Any]) -> str:
    entries = "".join(
        f'<li title="{html.escape(series["name"])}"><i style="background:var({series["colour"]})">'
        f"</i><span>{html.escape(series['name'])}</span><output></output></li>"
        for series in described["series"]
    )
    return (
        f'<section data-chart="{number}"><h2>{html.escape(chart.title)}<time></time></h2>'
        f'<div class="chart" aria-hidden="true"></div><ul class="legend">{entries}</ul></section>'
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    lines = [f"<tr>{cells}</tr>"]
    for row in body:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return (
        '<section class="topics"><h2>Topics</h2><p class="hint">Scroll sideways for more columns.'
        '</p><div class="scroller" tabindex="0" role="region" aria-label="Topics">'
        f"<table>{''.join(lines)}</table></div></section>"
    )
