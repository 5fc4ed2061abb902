"""`proxima bench report`: one page for results of every kind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from result_files import compared, lab_sweep, served, tuned, write

from proxima_bench.html import intervals, legend, page, plots, series
from proxima_bench.html.results import Measured, read
from proxima_bench.intervals import VERDICT_ROUNDS
from proxima_config.errors import UsageError
from proxima_server.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page for results, written by the command. Pictures take their time, so the same page is made once."""
    made = {}

    def report(*results, language="en"):
        folder = tmp_path_factory.mktemp("report")
        key = json.dumps([results, language])
        if key not in made:
            files = [write(folder / f"{number}.json", each) for number, each in enumerate(results)]
            out = folder / "report.html"
            assert main(["bench", "report", *map(str, files), "--out", str(out), "--lang", language]) == 0
            made[key] = out.read_text(encoding="utf-8")
        return made[key]

    return report


def pictures(text):
    """Titles of the pictures, each of which is well-formed; what legends show has none."""
    return [ET.fromstring(svg)[0].text for svg in re.findall(r'<svg (?!class="look").*?</svg>', text, re.DOTALL)]


def cells(text, row):
    found = re.search(rf'<tr><th scope="row">{re.escape(row)}</th>(.*?)</tr>', text)
    return [re.sub("<.*?>", " ", cell).split() for cell in re.findall(r"<td.*?</td>", found[1])]


def judged(result):
    """The same with its last round numbered as if others had been between."""
    last = max(each["round"] for each in result["measurements"])
    for each in result["measurements"]:
        if each["round"] == last:
            each["round"] = VERDICT_ROUNDS
    return result


def test_a_comparison(report):
    text = report(judged(compared()))
    assert pictures(text) == [
        "Attainment against load",
        "Time to first token",
        "Whole answer",
        "Longest gap of a stream",
        "Waiting for the first token",
        "Streaming",
        "KV blocks in use",
        "Request by request",
        "Request by request",
        "When streams stood still",
    ]
    assert cells(text, "attained") == [["50.0%"], ["75.0%"], ["1.50", "[1.20,", "1.80]"]]
    assert 'class="better">1.50' in text
    assert "coloured where the interval excludes 1" in text
    assert cells(text, "http_429") == [["1", "of", "8"], ["0", "of", "8"]]
    assert cells(text, "streams above the target") == [["2", "of", "7"], ["0", "of", "8"]]
    assert cells(text, "KV blocks in use") == [["50%", "max", "90%"], ["50%", "max", "90%"]]


@pytest.mark.parametrize(
    ("language", "note"), [("en", "With fewer than 5 rounds an interval shows noise"), ("zh", "少于 5 轮时")]
)
def test_few_rounds_call_nothing_better(report, language, note):
    text = report(compared(), language=language)
    assert "[1.20, 1.80]" in text
    assert 'class="better"' not in text
    assert note in text


def test_the_machine_of_a_comparison_of_urls_is_the_clients(report):
    result = compared()
    result["arms"] = [{"name": "native", "url": ""}, {"name": "proxima", "url": "http://b"}]
    assert "Machine: Test" in report(result)
    result["arms"][0]["url"] = "http://a"
    assert "Client (the servers' machines are not known): Test" in report(result).replace("&#39;", "'")


def test_large_figures_are_written_out(report):
    result = tuned()
    result["tune"]["trials"]["proxima"]["value"] = 12345.6
    assert cells(report(result), "proxima")[0] == ["12346"]


def test_zeros_are_in_a_distribution():
    result = served()
    result["timeline"]["stall_s"] = [0.0, 0.0, 0.2, 0.4]
    assert series.shares_up_to([Measured("a", 1, 1, result)], "stall_s") == (
        [0.0, 0.0, 0.2, 0.4],
        [0.25, 0.5, 0.75, 1.0],
    )
    quantiles = {"stall_s": {"p50": 0.0, "p99": 0.3, "max": 0.4}}
    assert series.shares_up_to([Measured("a", 1, 1, quantiles)], "stall_s") == ((0.0, 0.3, 0.4), (0.5, 0.99, 1.0))


def test_every_look_can_be_explained():
    for look in (*plots._LOOKS, plots._OURS):
        assert [each.tag.rpartition("}")[2] for each in ET.fromstring(legend.sample(look))] == ["path", "path"]


def cases(*loads):
    """A comparison of several cases, each with a ratio of its own: 1.1, 1.2, ..."""
    result = compared()
    result["measurements"] = [
        {"case": name, "arm": arm, "round": 1, "report": served(**load)}
        for name, load in loads
        for arm in ("native", "proxima")
    ]
    result["cases"] = [
        {"name": name, "arms": {"native": {}, "proxima": {"attainment": {"ratio": _ratio(1.1 + number / 10)}}}}
        for number, (name, _) in enumerate(loads)
    ]
    return result


def _ratio(value):
    return {"value": value, "low": value - 0.05, "high": value + 0.05}


def test_ratios_stand_with_the_case_they_belong_to(report):
    falling = report(judged(cases(("b", {"rate_rps": 4.0}), ("a", {"rate_rps": 2.0}))))
    assert re.findall(r"At load (\S+) .*?<td class=\"better\">([\d.]+)", falling, re.DOTALL) == [
        ("4", "1.10"),
        ("2", "1.20"),
    ]


def test_cases_with_the_same_load_are_numbered(report):
    same = report(judged(cases(("few", {"rate_rps": 2.0}), ("many", {"rate_rps": 2.0}))))
    assert re.findall(r"At load (\S+) .*?<td class=\"better\">([\d.]+)", same, re.DOTALL) == [
        ("2", "1.20"),
        ("1", "1.10"),
    ]


def test_a_ramp_is_one_load_however_long_each_arm_took(report):
    result = compared()
    for number, each in enumerate(result["measurements"]):
        each["report"]["load"]["shape"] = {"kind": "ramp", "from_rps": 1.0, "to_rps": 2.0, "over_s": 2.0}
        each["report"]["duration_s"] += number
    assert cells(report(result), "attained")[2] == ["1.50", "[1.20,", "1.80]"]


def test_growing_load(report):
    text = report(lab_sweep())
    assert pictures(text)[:4] == [
        "Attainment against load",
        "Throughput against load",
        "TTFT p99 against load",
        "E2E p99 against load",
    ]
    assert "At load 1.25" in text


def test_what_a_search_tried(report):
    text = report(tuned())
    assert "settings found by trying them" in text
    assert [cells(text, name)[0] for name in ("proxima", "native", "proxima --max-num-seqs=4096")] == [
        ["110"],
        ["100"],
        ["out_of_memory"],
    ]


def test_one_arm_and_one_point(report):
    text = report(served())
    assert "Attainment against load" in pictures(text)
    assert "/ native" not in text


@pytest.mark.parametrize(
    "name",
    [
        "overload-cpu.json",
        pytest.param("lab-sweep.json", marks=pytest.mark.slow),
        pytest.param("lab-sweep-1500.json", marks=pytest.mark.slow),
    ],
)
def test_results_of_older_releases(report, name):
    """They hold percentiles, and no requests."""
    result = json.loads((DOCS / name).read_text())
    for measurement in result.get("measurements", ()):
        measurement["report"].pop("timeline", None)
        measurement["report"]["server"].pop("series", None)
    text = report(result)
    assert "This file holds percentiles only" in text
    assert "Request by request" not in pictures(text)


def test_nobody_answered(report):
    text = report(served(outcomes=("refused", "refused"), codes={"http_503": 2}))
    assert cells(text, "http_503") == [["2", "of", "2"]]
    assert "TTFT p50" not in text


def test_nothing_is_loaded_from_elsewhere_and_names_are_text(report):
    text = report(compared(arms=("native", "<script>alert(1)</script>")), served())
    assert "<script" not in text
    addresses = set(re.findall(r'(?:src|href)="([^"#]+)', text)) | set(re.findall(r"url\(([^#)][^)]*)\)", text))
    assert addresses <= {"data:,"}
    # Ids are those of one picture alone: a clip path of another would cut it.
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_in_chinese(report):
    text = report(compared(), language="zh")
    assert '<html lang="zh-CN">' in text
    assert "达标率与负载" in pictures(text)
    assert cells(text, "达标率")[0] == ["50.0%"]


def test_both_languages_say_the_same_things():
    english, chinese = (page.texts_of(language) for language in page.LANGUAGES)
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert re.findall(r"{\w+}", text) == re.findall(r"{\w+}", chinese[key]), key


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "is no JSON", id="broken"),
        pytest.param("{}", "is no result of `proxima bench serve`", id="other"),
        pytest.param("[]", "is no result of", id="list"),
        pytest.param('{"measurements": []}', "is measured yet", id="empty"),
        pytest.param('{"measurements": [{"case": "saturation"}]}', "is measured yet", id="unfinished_sweep"),
    ],
)
def test_what_is_no_result(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("attained", "offered", "low", "high"),
    # Wilson's intervals as statistics packages give them.
    [(8, 10, 0.4902, 0.9433), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0)],
)
def test_intervals_of_shares(attained, offered, low, high):
    half = {"requests": {"offered": offered // 2, "attained": attained // 2}}
    share, *bounds = intervals.attainment([Measured("a", 1, number, half) for number in (1, 2)])
    assert share == attained / offered
    assert bounds == [pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4)]
