"""The pictures of a report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from proxima_bench.html import intervals
from proxima_bench.html.picture import ALARM, INK, MUTED, percent, picture, plain_log
from proxima_bench.html.results import Measured, Result
from proxima_bench.html.series import QUANTILES, counted_over_time, figure_at, shares_up_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Texts = Mapping[str, str]

# Okabe and Ito's colours, which the colour-blind tell apart; markers and dashes for print in grey.
_LOOKS: Sequence[tuple[str, str, str]] = (
    ("#0072b2", "s", "-"),
    ("#e69f00", "v", "-"),
    ("#cc79a7", "^", "-"),
    ("#56b4e9", "D", "--"),
    ("#d55e00", "P", "--"),
    ("#7f6000", "X", "--"),
    ("#5b5b5b", "<", ":"),
    ("#9467bd", ">", ":"),
    ("#8c564b", "p", ":"),
)
_OURS = ("#007a61", "o", "-")
"""Of the arm `proxima`, in every picture."""
_MARKED = 0.15
"""How far markers are apart on a line of many points, in diagonals of the picture."""
_MOST_BARS = 300
_COLUMNS = ("sent_s", "ttft_s", "e2e_s", "stall_s", "stall_at_s", "outcome")
_WELL = ("completed", "withdrawn")
_COUNTED = ("waiting", "running")
_SHARES = ("kv_use", "device_utilisation")


class Plots:
    """All pictures of one result. Each method gives SVG, or nothing where the result does not have what it needs."""

    def __init__(self, result: Result, texts: Texts, prefix: str = "") -> None:
        """``prefix`` makes the ids in the pictures those of this result alone."""
        self._result = result
        self._ids = (f"{prefix}p{number}-" for number in itertools.count())
        self._texts = texts
        others = itertools.cycle(_LOOKS)
        self.looks = {arm: _OURS if arm == "proxima" else next(others) for arm in result.arms}

    def attainment(self) -> str:
        """Against load; with one load, arms beside each other."""
        if len(self._result.loads) == 1:
            return self._picture(
                "attainment", self._attainment_of_one_load, width=7, height=1.1 + 0.36 * len(self._result.arms)
            )
        return self._picture("attainment", self._attainment_curves)

    def against_load(self, key: str, *path: str) -> str:
        """Median over rounds of any figure against load; nothing with a single load."""
        curves = {arm: self._curve(arm, path) for arm in self._result.arms}
        if len(self._result.loads) == 1 or not any(len(curve) > 1 for curve in curves.values()):
            return ""

        def draw(axes: Axes) -> None:
            for arm, curve in curves.items():
                if curve:
                    color, marker, dashes = self.looks[arm]
                    axes.plot(*zip(*curve, strict=True), color=color, marker=marker, ls=dashes, ms=4)
            self._load_axis(axes)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(self._texts[f"axis_{key}"])

        return self._picture(key, draw)

    def distribution(self, key: str, target_s: float | None) -> str:
        """Share of requests up to a latency, all rounds of the heaviest load together."""
        curves = {arm: shares_up_to(self._heaviest(arm), key) for arm in self._result.arms}
        if not any(curves.values()):
            return ""

        # A logarithmic axis has no place for 0, which counts all the same: it stands at the smallest value there is.
        lowest = min((value for curve in curves.values() if curve for value in curve[0] if value > 0), default=0.001)

        def draw(axes: Axes) -> None:
            for arm, (values, shares) in ((arm, curve) for arm, curve in curves.items() if curve):
                color, marker, dashes = self.looks[arm]
                exact = len(values) > len(QUANTILES)
                style: dict[str, Any] = {"drawstyle": "steps-post", "markevery": _MARKED} if exact else {}
                shown = [max(value, lowest) for value in values]
                axes.plot(shown, shares, color=color, ls=dashes, marker=marker, ms=4, **style)
            if target_s:
                axes.axvline(target_s, color=MUTED, lw=1, ls=(0, (3, 3)))
                axes.annotate(
                    f"{target_s:g} s", (target_s, 0.02), xytext=(3, 0), textcoords="offset points", color=MUTED
                )
            axes.set_xscale("log")
            plain_log(axes.xaxis)
            axes.set_ylim(0, 1.02)
            axes.yaxis.set_major_formatter(percent)
            axes.set_xlabel(self._texts[f"axis_{key}"])
            axes.set_ylabel(self._texts["axis_share"])

        return self._picture(key, draw)

    def timeline(self, arm: str) -> str:
        """One line for each request: waiting, streaming, and its longest gap where that was too long."""
        found = self._first_timeline(arm)
        if found is None:
            return ""
        rows = list(zip(*(found[key] for key in _COLUMNS), strict=True))[:_MOST_BARS]

        def draw(axes: Axes) -> None:
            self._draw_rows(axes, rows, self.looks[arm][0])

        return self._picture("timeline", draw, width=9.6, height=1.2 + 0.016 * max(60, len(rows)))

    def over_time(self, key: str) -> str:
        """`waiting` and `running` from the requests themselves; what else from the server's metrics."""
        curves = {arm: self._over_time(arm, key) for arm in self._result.arms}
        if not any(curves.values()):
            return ""

        def draw(axes: Axes) -> None:
            for arm, curve in curves.items():
                if curve:
                    color, marker, dashes = self.looks[arm]
                    # Waiting and running change with each request, and stay between; a gauge is only sampled.
                    steps = "steps-post" if key in _COUNTED else "default"
                    axes.plot(
                        *curve,
                        color=color,
                        ls=dashes,
                        lw=1.4,
                        drawstyle=steps,
                        marker=marker,
                        ms=3.5,
                        markevery=_MARKED,
                    )
            axes.set_xlabel(self._texts["axis_time"])
            axes.set_ylabel(self._texts[f"axis_{key}"])
            axes.set_ylim(bottom=0)
            if key in _SHARES:
                axes.set_ylim(0, 1.02)
                axes.yaxis.set_major_formatter(percent)

        return self._picture(key, draw)

    def stalls(self) -> str:
        """When streams stood still, and for how long."""
        found = {arm: self._first_timeline(arm) for arm in self._result.arms}
        points = {
            arm: [
                (at, gap) for at, gap in zip(rows["stall_at_s"], rows["stall_s"], strict=True) if at is not None and gap
            ]
            for arm, rows in found.items()
            if rows is not None
        }
        if not any(points.values()):
            return ""

        def draw(axes: Axes) -> None:
            for arm, each in points.items():
                if each:
                    color, marker, _ = self.looks[arm]
                    axes.scatter(
                        [at for at, _ in each],
                        [gap for _, gap in each],
                        color=color,
                        marker=marker,
                        s=11,
                        alpha=0.65,
                        lw=0,
                    )
            axes.axhline(self._result.stall_s, color=MUTED, lw=1, ls=(0, (3, 3)))
            axes.set_yscale("log")
            plain_log(axes.yaxis)
            axes.set_xlabel(self._texts["axis_time"])
            axes.set_ylabel(self._texts["axis_stall_s"])

        return self._picture("stalls", draw, width=9.6, height=2.9)

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _attainment_of_one_load(self, axes: Axes) -> None:
        for place, arm in enumerate(reversed(self._result.arms)):
            share, low, high = intervals.attainment(self._result.of(arm, self._result.loads[0]))
            color = self.looks[arm][0]
            axes.barh(place, share, height=0.56, color=color, alpha=0.9)
            axes.errorbar(share, place, xerr=[[share - low], [high - share]], color=INK, lw=1.1, capsize=3)
            axes.annotate(f"{share:.1%}", (high, place), xytext=(6, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(self._result.arms)), list(reversed(self._result.arms)), color=INK)
        axes.set_xlim(0, 1.12)
        axes.xaxis.set_major_formatter(percent)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(self._texts["axis_attainment"])

    def _attainment_curves(self, axes: Axes) -> None:
        for arm in self._result.arms:
            loads = [load for load in self._result.loads if self._result.of(arm, load)]
            shares, lows, highs = zip(
                *(intervals.attainment(self._result.of(arm, load)) for load in loads), strict=True
            )
            color, marker, dashes = self.looks[arm]
            axes.fill_between(loads, lows, highs, color=color, alpha=0.13, lw=0)
            axes.plot(loads, shares, color=color, marker=marker, ls=dashes, ms=4.5)
            capacity = self._result.findings.get("arms", {}).get(arm, {}).get("capacity_rps")
            if capacity:
                axes.plot([capacity], [self._result.findings["target"]], marker="|", ms=14, color=color, mew=2)
        axes.axhline(self._result.findings.get("target", 0.9), color=MUTED, lw=1, ls=(0, (3, 3)))
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(percent)
        axes.set_ylabel(self._texts["axis_attainment"])
        self._load_axis(axes)

    def _draw_rows(self, axes: Axes, rows: Sequence[tuple[Any, ...]], color: str) -> None:
        width = max(0.5, min(2.2, 320 / max(1, len(rows))))
        for place, (sent, ttft, e2e, stall, stall_at, outcome) in enumerate(rows):
            end = sent + (e2e or 0)
            first = end if ttft is None else sent + ttft
            axes.hlines(place, sent, first, color="#c3cad3", lw=width)
            axes.hlines(place, first, end, color=color, lw=width)
            if stall_at is not None and stall and stall > self._result.stall_s:
                axes.hlines(place, stall_at, stall_at + stall, color=ALARM, lw=width)
            if outcome not in _WELL:
                axes.plot([end], [place], marker="x", color=ALARM, ms=3.5, mew=1)
        axes.set_ylim(len(rows), -1)
        axes.set_xlim(0, 1.01 * self._longest_s())
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(self._texts["axis_time"])
        axes.set_ylabel(self._texts["axis_requests"])

    def _longest_s(self) -> float:
        """When the last request of any arm ended: all arms have the same axis of time."""
        found = [each for arm in self._result.arms if (each := self._first_timeline(arm))]
        ends = (sent + (e2e or 0) for each in found for sent, e2e in zip(each["sent_s"], each["e2e_s"], strict=True))
        return float(max(ends))

    def _load_axis(self, axes: Axes) -> None:
        axes.set_xlabel(self._texts[f"axis_load_{self._result.unit}"])
        axes.set_xlim(left=0)

    def _picture(self, key: str, draw: Callable[[Axes], None], *, width: float = 4.7, height: float = 2.9) -> str:
        return picture(self._texts[f"title_{key}"], draw, next(self._ids), width=width, height=height)

    # -- data ------------------------------------------------------------------------------------------------------

    def _heaviest(self, arm: str) -> list[Measured]:
        return self._result.of(arm, max((each.load for each in self._result.measured if each.arm == arm), default=0.0))

    def _first_timeline(self, arm: str) -> Mapping[str, Any] | None:
        return next((found for each in self._heaviest(arm) if (found := each.report.get("timeline"))), None)

    def _curve(self, arm: str, path: Sequence[str]) -> list[tuple[float, float]]:
        points = []
        for load in self._result.loads:
            values = [figure_at(each.report, path) for each in self._result.of(arm, load)]
            if known := [value for value in values if value is not None]:
                points.append((load, median(known)))
        return points

    def _over_time(self, arm: str, key: str) -> tuple[Sequence[float], Sequence[float]] | None:
        if key in _COUNTED:
            found = self._first_timeline(arm)
            return counted_over_time(found, key) if found else None
        for each in self._heaviest(arm):
            series = (each.report.get("server") or {}).get("series") or {}
            if values := series.get(key):
                pairs = [(at, value) for at, value in zip(series["time_s"], values, strict=True) if value is not None]
                return tuple(zip(*pairs, strict=True)) if pairs else None  # type: ignore[return-value]
        return None
