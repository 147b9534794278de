"""A recipe's result as one page: charts that Plotly draws, from data inside the page itself.

Nothing is fetched: the library is in the page, once. Texts of traces are cleaned, and escaped for
Plotly, which reads a subset of HTML in labels.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stepscope.jobs.recipes.recipe import Chart, Output
from stepscope.jobs.recipes.result import RecipeFigure, RecipeResult
from stepscope.render.html import page
from stepscope.render.tables import rows_of
from stepscope.render.text import clean, figure, plural
from stepscope.trace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_LINES: Final = 12
"""Lines of a chart; of more groups a band of quantiles is drawn."""
MOST_ROWS: Final = 60
"""Rows of a heat map whose rows are names; ranks are all drawn."""
_SHOWN: Final = 50
_LIBRARY: Final = "package_data/plotly.min.js"
_LABEL: Final = 48
_TIMES: Final = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
_SIZES: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_WORDS: Final = {
    "accum": "so far", "child": "children", "dst": "destination", "gpu": "GPU",
    "gpuops": "GPU operations", "id": "ID", "lvl": "level", "mpi": "MPI", "nccl": "NCCL",
    "num": "number of", "orig": "original", "pid": "process", "q1": "1st quartile",
    "q3": "3rd quartile", "sm": "SM", "src": "source", "std": "standard deviation",
    "tid": "thread", "ucx": "UCX",
}  # fmt: skip
"""Parts of the names of columns that are no words, or are written in capitals."""
_BANDS: Final = ((0.0, "least"), (0.1, "10 %"), (0.5, "median"), (0.9, "90 %"), (1.0, "most"))


@cache
def plotly_js() -> str:
    """The library's text.

    Raises:
        UsageError: it is not installed.
    """
    found = find_spec("plotly")
    if found is None or not found.origin:
        raise UsageError(
            "the page of a recipe needs Plotly, which the extra recipes installs; pip install "
            "plotly, or leave the page out with --no-page"
        )
    try:  # importing the package takes longer than reading what is wanted of it
        text = (Path(found.origin).parent / _LIBRARY).read_text(encoding="utf-8")
    except OSError:
        text = import_module("plotly.offline").get_plotlyjs()
    return text.replace("</script", "<\\/script")


def recipe_page(
    result: RecipeResult,
    charts: Sequence[tuple[Chart, pa.Table]],
    first: Output,
    table: pa.Table,
) -> str:
    """The page.

    Args:
        result: what the recipe says of itself.
        charts: what is drawn, with its rows.
        first: the table that is shown in figures.
        table: its rows.
    """
    from markupsafe import Markup

    drawn = [drawing for chart, rows in charts if (drawing := _drawing(chart, rows)) is not None]
    data = json.dumps([d for _, _, d in drawn], allow_nan=False).replace("<", "\\u003c")
    rows = rows_of(table.slice(0, _SHOWN))
    return page(
        "recipe.html",
        title=result.title,
        doc=result.doc,
        facts=[f"recipe {result.recipe}", *about(result)],
        figures=[(f.doc, shown_figure(f)) for f in result.figures],
        charts=[(chart.title, note) for chart, note, _ in drawn],
        data=Markup(data),
        plotly=Markup(plotly_js()),
        table_doc=first.doc,
        head=[column_title(name) for name in table.column_names],
        hints=[first.columns.get(name, name) for name in table.column_names],
        rows=[
            [_cell(name, value) for name, value in zip(table.column_names, row, strict=True)]
            for row in rows
        ],
        numeric=[
            value is None or not isinstance(value, str)
            for value in (rows or [table.column_names])[0]
        ],
        more=_more(table.num_rows, first.name),
        left_out=[f"{i.path}: {i.message}" for i in result.inputs if i.rank is None][:100],
        notes=result.notes[:100],
        files=[file for t in result.tables for file in t.files],
    )


def column_title(name: str) -> str:
    """The title of a column as a person reads it, from its name.

    Cells carry the unit that fits them, so that a title tells it only where two columns could be
    meant: shares and percentages.
    """
    plain, unit = name, ""
    for ending, shown in (("_ns", ""), ("_bytes", ""), ("_share", " (%)"), ("_percent", " (%)")):
        if name.endswith(ending):
            plain, unit = name.removesuffix(ending), shown
    words = " ".join(_WORDS.get(word, word) for word in plain.split("_"))
    return words[:1].upper() + words[1:] + unit


def about(result: RecipeResult) -> list[str]:
    """What was asked, in sentences."""
    inside = sum(i.rank is not None for i in result.inputs)
    facts = [plural(inside, "capture") + f", Stepscope {result.version}"]
    lacking = sum(i.state == "lacking" for i in result.inputs)
    broken = len(result.inputs) - inside - lacking
    if lacking:
        facts.append(f"{plural(lacking, 'capture')} without what the recipe needs, left out")
    if broken:
        are = "is" if broken == 1 else "are"
        facts.append(f"{plural(broken, 'capture')} could not be read and {are} NOT in the result")
    if result.options:
        facts.append("options: " + ", ".join(f"{k}={v}" for k, v in result.options.items()))
    return facts


def shown_figure(item: RecipeFigure) -> str:
    """A figure's value with its unit."""
    if item.value is None:
        return "-"
    if item.unit and not isinstance(item.value, str):
        return figure(item.value, item.unit)
    return clean(str(item.value))


def _more(rows: int, name: str) -> str:
    return f"{_SHOWN} of {rows:,} rows; all are in {name}.csv" if rows > _SHOWN else ""


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value)
    for ending, unit in (("_ns", "ns"), ("_bytes", "bytes"), ("_share", "share")):
        if name.endswith(ending):
            return figure(value, unit)
    if name.endswith("_percent"):
        return f"{value:z.1f} %"
    if isinstance(value, int) and name.rpartition("_")[2] in {"id", "pid", "tid"}:
        return str(value)  # a name that looks like a number
    return f"{value:,}" if isinstance(value, int) else f"{value:z,.4g}"


# --- charts ---------------------------------------------------------------------------------------


def _drawing(chart: Chart, rows: pa.Table) -> tuple[Chart, str, dict[str, Any]] | None:
    """(chart, what is not drawn of it, the figure); None where there is nothing to draw."""
    values = rows.column(chart.value).to_pylist()
    if not any(value is not None for value in values):
        return None
    scale, unit = _scale(values, chart.unit)
    if chart.value.endswith("_share"):  # as the tables show them
        scale, unit = 0.01, "%"
    columns = {
        name: rows.column(name).to_pylist()
        for name in {chart.x, chart.y, chart.group} & set(rows.column_names)
    }
    columns["value"] = [None if v is None or math.isnan(v) else v / scale for v in values]
    if chart.y == "rank" and "device" in rows.column_names:
        devices = rows.column("device").to_pylist()
        several = len(set(zip(columns["rank"], devices, strict=True))) > len(set(columns["rank"]))
        if several:
            columns["rank"] = [
                f"{r}, GPU {d}" for r, d in zip(columns["rank"], devices, strict=True)
            ]
    draw = {"heat": _heat, "bar": _bar, "line": _line}[chart.kind]
    note, drawn = draw(chart, columns, unit)
    return chart, note, drawn


def _scale(values: Sequence[Any], unit: str) -> tuple[float, str]:
    most = max((abs(v) for v in values if v is not None and not math.isnan(v)), default=0.0)
    known = {"ns": _TIMES, "bytes": _SIZES}.get(unit)
    if known is None:
        return 1.0, "%" if unit == "percent" else unit
    name, size = next((pair for pair in known if most >= pair[1]), known[-1])
    return size, name


def _label(value: Any) -> str:
    return html.escape(clean(str(value), _LABEL))


def _along(values: Sequence[Any], name: str) -> tuple[list[Any], str]:
    """The values of an axis in a readable unit, and its title."""
    if not name.endswith("_ns"):
        return list(values), name.replace("_", " ")
    scale, unit = _scale(values, "ns")
    return [v / scale for v in values], f"{name.removesuffix('_ns').replace('_', ' ')} ({unit})"


def _rows_of_heat(chart: Chart, y: Sequence[Any], value: Sequence[Any]) -> tuple[list[Any], str]:
    """What the rows are, from below, and what is not shown of them."""
    if not _are_texts(y):
        return sorted(set(y)), ""
    totals: dict[Any, float] = {}
    for name, number in zip(y, value, strict=True):
        totals[name] = totals.get(name, 0.0) + abs(number or 0.0)
    by_rank = chart.y == "rank"
    names = list(totals) if by_rank else sorted(totals, key=lambda n: -totals[n])[:MOST_ROWS]
    names.reverse()
    return names, _of(len(names), len(totals), "rows")


def _heat(chart: Chart, columns: dict[str, Any], unit: str) -> tuple[str, dict[str, Any]]:
    x, y, value = columns[chart.x], columns[chart.y], columns["value"]
    along = sorted(set(x))
    names, note = _rows_of_heat(chart, y, value)
    column = {v: i for i, v in enumerate(along)}
    row = {v: i for i, v in enumerate(names)}
    cells: list[list[float | None]] = [[None] * len(along) for _ in names]
    for at, name, number in zip(x, y, value, strict=True):
        if name in row and number is not None:
            cells[row[name]][column[at]] = round(number, 6)
    shown, title = _along(along, chart.x)
    labels = [_label(name) for name in names]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": shown,
        "y": list(range(len(names))) if _are_texts(names) else names,
        "z": cells,
        "colorscale": "RdBu" if chart.middle else "Viridis",
        "colorbar": {"title": {"text": unit}, "thickness": 12},
        "hovertemplate": f"{html.escape(title)} %{{x}}<br>%{{text}}<br>%{{z:.4g}} {unit}"
        "<extra></extra>",
        "hoverongaps": False,
    }
    texts = _are_texts(names)
    if texts and len(names) * len(along) <= 100_000:
        trace["text"] = [[label] * len(along) for label in labels]
    else:
        trace["hovertemplate"] = trace["hovertemplate"].replace("%{text}", f"{chart.y} %{{y}}")
    if chart.middle:
        trace["zmid"] = 0
    if chart.unit == "percent" and not chart.middle:
        trace |= {"zmin": 0, "zmax": 100}
    axis: dict[str, Any] = {"automargin": True, "showgrid": False, "zeroline": False}
    if texts:
        step = max(1, len(names) // 60)
        axis |= {
            "tickmode": "array",
            "tickvals": list(range(0, len(names), step)),
            "ticktext": labels[::step],
        }
    else:
        axis |= {"title": {"text": html.escape(chart.y)}, "autorange": "reversed"}
        if len(names) <= 16:
            axis |= {"tickmode": "array", "tickvals": names}
    height = min(900, max(260, 110 + len(names) * (18 if texts else 22)))
    across: dict[str, Any] = {
        "title": {"text": html.escape(title)},
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }
    if chart.x == "rank" and len(along) <= 32:
        across |= {"tickmode": "array", "tickvals": along}
    return note, {"data": [trace], "layout": _layout(height, across, axis)}


def _are_texts(names: Sequence[Any]) -> bool:
    return any(isinstance(name, str) for name in names)


def _bar(chart: Chart, columns: dict[str, Any], unit: str) -> tuple[str, dict[str, Any]]:
    value, names = columns["value"], columns[chart.y]
    groups = columns.get(chart.group) or [""] * len(names)
    totals: dict[Any, float] = {}
    for name, number in zip(names, value, strict=True):
        totals[name] = totals.get(name, 0.0) + abs(number or 0.0)
    alike = sorted(totals, key=str) if _are_texts(list(totals)) else sorted(totals)
    best = sorted(alike, key=lambda n: -totals[n])[: chart.top]
    note = _of(len(best), len(totals), f"{chart.y}s")
    place = {name: len(best) - 1 - i for i, name in enumerate(best)}
    traces = []
    for group in dict.fromkeys(groups):
        held = [
            (place[n], v, n)
            for n, v, g in zip(names, value, groups, strict=True)
            if g == group and n in place and v is not None
        ]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": _label(group),
                "y": [at for at, _, _ in held],
                "x": [round(v, 6) for _, v, _ in held],
                "text": [html.escape(clean(str(n), 300)) for _, _, n in held],
                "textposition": "none",
                "hovertemplate": f"%{{text}}<br>%{{x:.4g}} {unit}",
            }
        )
    prefix = f"{chart.y} " if best and not _are_texts(best) else ""
    axis = {
        "automargin": True,
        "tickmode": "array",
        "tickvals": [place[name] for name in best],
        "ticktext": [prefix + _label(name) for name in best],
    }
    height = max(220, 110 + 22 * len(best))
    layout = _layout(height, {"title": {"text": unit}}, axis)
    layout |= {"barmode": "relative", "showlegend": len(traces) > 1}
    return note, {"data": traces, "layout": layout}


def _line(chart: Chart, columns: dict[str, Any], unit: str) -> tuple[str, dict[str, Any]]:
    x, value = columns[chart.x], columns["value"]
    groups = columns.get(chart.group) or [""] * len(x)
    along = sorted(set(x))
    shown, title = _along(along, chart.x)
    names = list(dict.fromkeys(groups))
    note = ""
    if len(names) > MOST_LINES:
        note = f"{len(names):,} {chart.group}s as a band: least, 10 %, median, 90 %, most"
        traces = _band(along, shown, x, value)
    else:
        place = dict(zip(along, shown, strict=True))
        mode = "lines" if len(along) > 60 else "lines+markers"
        if chart.x == "rank":  # nothing lies between two ranks
            mode = "markers"
        traces = [
            {
                "type": "scatter",
                "mode": mode,
                "name": _label(f"{chart.group} {name}" if chart.group else ""),
                "x": [place[a] for a, g in zip(x, groups, strict=True) if g == name],
                "y": [v for v, g in zip(value, groups, strict=True) if g == name],
            }
            for name in names
        ]
    layout = _layout(
        360, {"title": {"text": html.escape(title)}}, {"title": {"text": unit}, "automargin": True}
    )
    layout["showlegend"] = len(traces) > 1
    return note, {"data": traces, "layout": layout}


def _band(
    along: Sequence[Any], shown: Sequence[Any], x: Sequence[Any], value: Sequence[Any]
) -> list[dict[str, Any]]:
    import numpy as np

    held: dict[Any, list[float]] = {at: [] for at in along}
    for at, number in zip(x, value, strict=True):
        if number is not None:
            held[at].append(number)
    traces: list[dict[str, Any]] = []
    for part, name in _BANDS:
        line = [round(float(np.quantile(held[at], part)), 6) if held[at] else None for at in along]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": list(shown),
                "y": line,
                "line": {
                    "color": "#1f77b4",
                    "width": 2.5 if part == 0.5 else 1,
                    "dash": "dot" if part in (0.0, 1.0) else "solid",
                },
            }
        )
    traces[3] |= {"fill": "tonexty", "fillcolor": "rgba(31,119,180,0.2)"}
    traces[2], traces[3] = traces[3], traces[2]  # the fill reaches to the line before
    return traces


def _layout(height: int, x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 16, "b": 48},
        "xaxis": x,
        "yaxis": y,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"namelength": -1},
    }


def _of(shown: int, all_: int, what: str) -> str:
    return f"the largest {shown:,} of {all_:,} {what}" if shown < all_ else ""
