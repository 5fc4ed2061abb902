"""One picture: matplotlib's SVG, made fit to stand in a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, MUTED, GRID, ALARM = "#1c2430", "#5d6878", "#e3e7ec", "#c0392b"
_RC: Mapping[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "proxima",
    "text.parse_math": False,  # Names of arms are text.
    "font.size": 9.5,
    "axes.edgecolor": "#aab3bf",
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
}
_FONTS = "system-ui,-apple-system,'Segoe UI','Noto Sans','Noto Sans CJK SC','PingFang SC','Microsoft YaHei',sans-serif"


def picture(title: str, draw: Callable[[Axes], None], prefix: str, *, width: float, height: float) -> str:
    """SVG that can stand in a page, its ids beginning with ``prefix``; sizes are in inches of print."""
    import warnings

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(dict(_RC)), warnings.catch_warnings():
        # Texts are set by the browser, which has glyphs that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        drawn = Figure(figsize=(width, height), layout="constrained")
        axes = drawn.subplots()
        draw(axes)
        return _embedded(drawn, title, prefix)


def percent(value: float, _place: float) -> str:
    """For an axis of shares."""
    return f"{value:.0%}"


def plain_log(axis: Axis) -> None:
    """Few ticks, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0,) if high > 300 * low else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _embedded(picture: Figure, title: str, prefix: str) -> str:
    """SVG that scales with its place, with ids of its own and the page's font."""
    written = io.StringIO()
    picture.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"(font: [\d.]+px )[^;\"]+", rf"\g<1>{_FONTS}", svg)
    head, rest = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]+"', head)
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    return f'<svg {names} {view[0] if view else ""} role="img"><title>{escape(title)}</title>{rest}'
