"""The report for people: one table of latencies, one of counts."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxima_bench.figures import STATISTICS

_LATENCIES = {
    "ttft_s": "TTFT",
    "itl_s": "ITL",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "stall_s": "stall",
}


def show(report: dict[str, Any], console: Console) -> None:
    console.print(_headline(report), highlight=False)
    console.print(Group(_latencies(report), _counts(report)), highlight=False)
    for warning in report["warnings"]:
        console.print(Text(f"warning: {warning}", style="yellow"))


def _headline(report: dict[str, Any]) -> RenderableType:
    load = report["load"]
    name = f"{load['preset']}: " if load["preset"] else ""
    return Text(
        f"{name}{report['requests']['offered']} requests, {load['arrivals']}; {load['prompts']['kind']} prompts, "
        f"{load['lengths']} lengths, {load['api']}{'' if load['stream'] else ', not streamed'}, seed {load['seed']}\n"
        f"{load['url']} {load['model'] or ''}".rstrip()
    )


def _latencies(report: dict[str, Any]) -> Table:
    table = Table("seconds", title_justify="left")
    for statistic in STATISTICS:
        table.add_column(statistic, justify="right")
    for key, label in _LATENCIES.items():
        table.add_row(label, *(_number(report[key][statistic], 3) for statistic in STATISTICS))
    return table


def _counts(report: dict[str, Any]) -> Table:
    requests, client, slo = report["requests"], report["client"], report["slo"]
    table = Table(show_header=False)
    table.add_row("completed", f"{requests['completed']} of {requests['offered']} in {report['duration_s']:.1f} s")
    table.add_row("requests/s", _number(report["qps"], 2))
    table.add_row("output tokens/s", f"{_number(report['output_tokens_per_s'], 1)} ({report['tokens']['source']})")
    table.add_row(
        f"attainment (TTFT ≤ {slo['ttft_s']:g} s, stall ≤ {slo['stall_s']:g} s)", _share(report["attainment"])
    )
    table.add_row("goodput, requests/s", _number(report["goodput_rps"], 2))
    errors = ", ".join(f"{code} {count}" for code, count in report["errors"].items())
    table.add_row("errors", errors or "none")
    if requests["withdrawn"]:
        table.add_row("withdrawn by the client", str(requests["withdrawn"]))
    lag_ms = (client["lag_s"]["p99"] or 0) * 1000
    table.add_row("client", f"{client['cpu_share']:.0%} of a core, loop lag {lag_ms:.1f} ms (p99)")
    for label, value in _server(report["server"] or {}):
        table.add_row(label, value)
    return table


def _server(server: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if server.get("preemptions") is not None:
        rows.append(("preemptions", str(server["preemptions"])))
    if server.get("prefill_tokens") is not None:
        rows.append(("prefill tokens computed", str(server["prefill_tokens"])))
    if server.get("recomputed_tokens") is not None:
        rows.append(("tokens computed again", str(server["recomputed_tokens"])))
    if kv_use := server.get("kv_use"):
        pool = f" of {blocks} blocks" if (blocks := server.get("kv_blocks")) else ""
        rows.append(("KV use", f"{_share(kv_use['mean'])} mean, {_share(kv_use['max'])} max{pool}"))
    if running := server.get("running"):
        rows.append(("running batch", f"{running['mean']:.1f} mean, {running['max']:.0f} max"))
    if device := server.get("device_utilisation"):
        rows.append(("device utilisation", f"{_share(device['mean'])} mean, {_share(device['max'])} max"))
    return rows


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
