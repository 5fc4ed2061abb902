"""Does `proxima bench serve` measure what vLLM's own benchmark measures?

    .venv/bin/python scripts/cross_check_bench.py --rounds 6 --json cross_check.json

Starts one gateway and sends it the same kind of load from both clients in turns, A B B A: prompts of 64 random tokens,
answers of 32 tokens whatever the model says, 16 requests at once, streamed from /v1/completions. Before each of our
runs vLLM is imported too, which takes vLLM's client a quarter of a minute: what the machine did just before, and for
how long the engine rested, shows in the first seconds of a run. Who goes first changes from round to round.
Each client's own summary is taken as it is; the 95 % intervals of the ratios of ours to vLLM's should contain 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from proxima_bench import loads, machine, servers
from proxima_bench.arms import Arm
from proxima_bench.intervals import ratio_of_medians

MODEL = "smollm2-135m"
REQUESTS, CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS = 64, 16, 64, 32
PROXIMA = str(Path(sys.executable).with_name("proxima"))
# The module has no command line of its own in the CPU build.
VLLM_BENCH = """\
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def ours(url: str, seed: int) -> dict[str, float]:
    flags = f"--requests {REQUESTS} --concurrency {CONCURRENCY} --input-tokens {INPUT_TOKENS} --seed {seed}"
    flags += f" --output-tokens {OUTPUT_TOKENS} --api completions --lengths cap --temperature 0 --warmup 4 --json"
    command = [PROXIMA, "bench", "serve", "--url", url, *flags.split()]
    importing = [sys.executable, "-P", "-c", "import vllm.benchmarks.serve"]
    subprocess.run(importing, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {
        "qps": report["qps"],
        "ttft_s": report["ttft_s"]["mean"],
        "tpot_s": report["tpot_s"]["mean"],
        "prompt_tokens": report["tokens"]["prompt"],
        "output_tokens": report["tokens"]["output"],
    }


def theirs(url: str, seed: int, tokenizer: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--backend openai --endpoint /v1/completions --model {MODEL} --dataset-name random --seed {seed}"
        flags += f" --random-input-len {INPUT_TOKENS} --random-output-len {OUTPUT_TOKENS} --ignore-eos --temperature 0"
        flags += f" --num-prompts {REQUESTS} --max-concurrency {CONCURRENCY} --num-warmups 4 --save-result"
        flags += f" --disable-tqdm --result-filename result.json --result-dir {folder} --tokenizer {tokenizer}"
        command = [sys.executable, "-P", "-c", VLLM_BENCH, *flags.split(), "--base-url", url]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    if result["failed"]:
        sys.exit(f"{result['failed']} requests of vLLM's client failed; its figures leave them out")
    return {
        "qps": result["request_throughput"],
        "ttft_s": result["mean_ttft_ms"] / 1000,
        "tpot_s": result["mean_tpot_ms"] / 1000,
        "prompt_tokens": result["total_input_tokens"],
        "output_tokens": result["total_output_tokens"],
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    tokenizer = subprocess.run([PROXIMA, "model", "path", MODEL], capture_output=True, text=True, check=True).stdout
    mine: list[dict[str, float]] = []
    vllms: list[dict[str, float]] = []
    log = Path(tempfile.mkdtemp(prefix="cross-check-")) / "gateway.log"
    plain = loads.Load(lengths=loads.Lengths.CAP)
    async with servers.running(Arm("proxima", kind="proxima"), MODEL, plain, [], log) as url:
        for number in range(options.rounds):
            # Different prompts every time: no client profits from what the other left in the prefix cache.
            if number % 2:
                vllms.append(await asyncio.to_thread(theirs, url, number, tokenizer.strip()))
            mine.append(await asyncio.to_thread(ours, url, 1000 + number))
            if not number % 2:
                vllms.append(await asyncio.to_thread(theirs, url, number, tokenizer.strip()))
            print(f"round {number + 1}: ours {mine[-1]}\n         vLLM's {vllms[-1]}", flush=True)
    ratios: dict[str, Any] = {}
    print(f"\n{machine.sentence(machine.describe())}; {options.rounds} interleaved rounds, ours / vLLM's")
    for figure in ("qps", "ttft_s", "tpot_s"):
        ratio = ratio_of_medians([each[figure] for each in mine], [each[figure] for each in vllms])
        assert ratio is not None
        ratios[figure] = {"value": ratio.value, "low": ratio.low, "high": ratio.high}
        print(f"{figure}: {ratio.value:.3f} [{ratio.low}, {ratio.high}]")
    if options.json:
        report = {"machine": machine.describe(), "ours": mine, "vllm": vllms, "ratios": ratios}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
