"""What came out of a search: which settings to serve with, what they gain, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from proxima_bench.comparison import FIGURES, Comparison
from proxima_bench.loads import Load
from proxima_bench.number_format import rounded
from proxima_bench.tune import proof
from proxima_bench.tune.configuration import Configuration
from proxima_bench.tune.given import Given
from proxima_bench.tune.proof import Gain
from proxima_bench.tune.search import Found
from proxima_config.errors import ProximaError


@dataclass(frozen=True)
class Verdict:
    found: Found
    chosen: Configuration
    """The best of the search where its gain is sure; else what serve does by itself, or where that failed the
    baseline."""
    gains: dict[str, Gain]
    """Of the best of the search, over `baseline` and `default`; without those that it is itself."""
    said: list[str]

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: str(each) for name, each in _named(self.found).items()},
            "chosen": str(self.chosen),
            "gains": {name: each.as_json() for name, each in self.gains.items()},
        }


def reach(compared: Comparison, objective: str, found: Found) -> Verdict:
    others = {name: each for name, each in _named(found).items() if name != "tuned" and each != found.tuned}
    figure = proof.figure_of(objective)
    known = {name: proof.gain(compared, figure, found.tuned.arm, over=each.arm) for name, each in others.items()}
    gains = {name: each for name, each in known.items() if each is not None}
    said = [f"{objective} of {found.tuned} over {others[name]}: {each}" for name, each in gains.items()]
    if found.default_failed:
        said.append(f"the defaults of proxima serve ({found.default}) failed; why stands in the trials")
        base, over, name = found.baseline, gains.get("baseline"), f"the baseline ({found.baseline})"
    else:
        base, over, name = found.default, gains.get("default"), f"the defaults of proxima serve ({found.default})"
    if found.tuned == base:
        chosen = base
        said.append(f"nothing that was tried was clearly better than {name}")
    elif over is not None and over.sure:
        chosen = found.tuned
        said.append(f"surely better than {name} under this load")
        said += _price(compared, found.tuned, base)
    else:
        chosen = base
        said.append(f"that may be chance, so what is written is {name}")
        if compared.rounds < proof.FEWEST_ROUNDS:
            said.append(f"fewer than {proof.FEWEST_ROUNDS} rounds can never be sure: give --rounds that many")
    return Verdict(found, chosen, gains, said)


def _price(compared: Comparison, tuned: Configuration, base: Configuration) -> list[str]:
    """What it surely does worse."""
    lost = []
    for figure in (each for each in FIGURES if each.is_rate):
        more, less = (base, tuned) if figure.higher_is_better else (tuned, base)
        worse = proof.gain(compared, figure, more.arm, over=less.arm)
        if worse is not None and worse.sure:
            before, after = (worse.values, worse.base) if figure.higher_is_better else (worse.base, worse.values)
            lost.append(f"{figure.label} {rounded(median(after))} instead of {rounded(median(before))}")
    return [f"its price: {', '.join(lost)}"] if lost else []


def _named(found: Found) -> dict[str, Configuration]:
    return {"baseline": found.baseline, "default": found.default, "tuned": found.tuned}


def write_settings(path: Path, chosen: Configuration, load: Load, given: Given, why: Sequence[str]) -> None:
    """With the targets that ``load`` gave to every trial. Raises ProximaError where the file cannot be written."""
    comment = "".join(f"# {line}\n" for line in ["Found by proxima tune.", *why])
    preset = {"preset": given.preset} if given.preset else {}
    # Those that the user gave won in the trials too.
    targets = {"scheduler.ttft_s": load.slo.ttft_s, "scheduler.stall_s": load.slo.stall_s}
    served = Configuration({**targets, **chosen.settings})
    values = {**preset, "model": given.model, **served.as_yaml()}
    try:
        path.write_text(comment + yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ProximaError(f"{path}: cannot be written ({error.strerror})") from error
