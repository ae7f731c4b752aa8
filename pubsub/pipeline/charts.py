"""A page of charts as one HTML file that loads nothing."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

# A palette that remains distinct for colour-blind readers (Okabe and Ito).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#5b5ea6")
_GREY = "#9aa3ad"
HEIGHT = 300
"""Height of a chart in pixels."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1500px; padding: 1.5rem clamp(.75rem, 3vw, 2.5rem) 3rem;
  font: 15px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1c2733;
  background: #f4f6f8; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
p.span { margin: .2rem 0 1.1rem; color: #55626f; }
.facts { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
  margin: 0 0 1rem; }
.facts div, section { background: #fff; border: 1px solid #dde3e8; border-radius: 8px; }
.facts div { padding: .6rem .9rem; }
.facts dt { color: #55626f; font-size: .85rem; }
.facts dd { margin: 0; font-size: 1.3rem; font-weight: 600; }
.charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
section { padding: .8rem .9rem; min-width: 0; }
section h2 { font-size: 1rem; margin: 0 0 .3rem; }
section ul { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; margin: .4rem 0 0;
  padding: 0; font-size: .85rem; }
section li { max-width: 15rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
section i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px;
  margin-right: .4rem; vertical-align: -.08rem; }
.topics { margin-top: 1rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid #e8ecf0; }
th { color: #55626f; font-weight: 500; font-size: .85rem; }
td:first-child, th:first-child { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere;
  min-width: 11rem; }
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """Series by name over ``times``; ``kind`` is area (stacked), line or bar."""

    title: str
    times: Sequence[datetime]
    series: Mapping[str, Sequence[Any]]
    kind: str
    unit: str = ""

    def figure(self) -> go.Figure:
        """Return the chart as a plotly figure."""
        figure = go.Figure()
        for index, (name, values) in enumerate(self.series.items()):
            figure.add_trace(self._trace(index, name, values))
        suffix = {"B": "B", "ms": " ms"}.get(self.unit, "")
        figure.update_layout(
            template="simple_white",
            height=HEIGHT,
            margin={"l": 8, "r": 12, "t": 8, "b": 8},
            hovermode="x unified",
            showlegend=False,
            font={"family": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 12},
            xaxis={"automargin": True, "nticks": 6, "tickangle": 0},
            yaxis={
                "automargin": True, "rangemode": "tozero", "gridcolor": "#e8ecf0",
                "showgrid": True, "nticks": 6, "ticksuffix": suffix,
                "tickformat": ",~f" if self.unit == "ms" else "~s",
            },
        )  # fmt: skip
        return figure

    def _trace(self, index: int, name: str, values: Sequence[Any]) -> Any:
        colour = _colour(index)
        # Names come from clients, and plotly interprets tags in them.
        shown = html.escape(name if len(name) <= 40 else f"{name[:39]}…", quote=False)
        if self.kind == "bar":
            return go.Bar(x=self.times, y=values, name=shown, marker={"color": colour})
        line = {"color": colour, "width": 1.5 if self.kind == "line" else 0.8}
        # A line through a single point is invisible.
        mode = "lines" if len(self.times) > 1 else "markers"
        stack = "all" if self.kind == "area" else None
        return go.Scatter(
            x=self.times, y=values, name=shown, mode=mode, line=line, stackgroup=stack
        )


def _colour(index: int) -> str:
    return _COLOURS[index] if index < len(_COLOURS) else _GREY


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
        # Without it, browsers request one from the server of the page.
        '<link rel="icon" href="data:,">',
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>{title}</h1><p class="span">{span}</p>',
    ]
    if facts:
        shown = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in facts
        )
        lines.append(f'<dl class="facts">{shown}</dl>')
    lines.append(f'<div class="charts">{"".join(map(_section, range(99), charts))}</div>')
    if table:
        lines.append(f'<section class="topics"><h2>Topics</h2>{_table(table)}</section>')
    if charts:
        # Last, because a chart takes the width of its container, which depends on all of them.
        lines.append(f"<script>{get_plotlyjs()}</script><script>{_script(charts)}</script>")
    lines.append("</body></html>\n")
    return "\n".join(lines)


def _section(number: int, chart: Chart) -> str:
    legend = ""
    if len(chart.series) > 1:
        entries = "".join(
            f'<li title="{html.escape(name)}"><i style="background:{_colour(index)}"></i>'
            f"{html.escape(name)}</li>"
            for index, name in enumerate(chart.series)
        )
        legend = f"<ul>{entries}</ul>"
    container = f'<div id="chart-{number}" style="height:{HEIGHT}px"></div>'
    return f"<section><h2>{html.escape(chart.title)}</h2>{container}{legend}</section>"


def _script(charts: Sequence[Chart]) -> str:
    """Return the script that draws each chart into its container."""
    lines = []
    for number, chart in enumerate(charts):
        # Otherwise a name could close the script element.
        figure = chart.figure().to_json().replace("<", "\\u003c")
        lines.append(
            f"((figure) => Plotly.newPlot('chart-{number}', figure.data, figure.layout, "
            f"{{responsive: true, displayModeBar: false}}))({figure});"
        )
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = [f"<tr>{cells}</tr>"]
    for row in body:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
