"""What we hand to the pinned vLLM's parser means to it what the user wrote, and vllm_flags.json is fresh.

vLLM takes half a minute to import here, so one process answers all questions of this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxima_config import arguments, vllm_flags
from proxima_config.command_parser import CommandParser
from proxima_config.hardware import Hardware
from proxima_config.layering import load_settings

ROOT = Path(__file__).resolve().parents[2]
GPU = Hardware(has_gpu=True, cpu_flags=frozenset(), cores=1, memory_bytes=1)
# Written as a user would; each must reach vLLM with the meaning that vLLM itself gives it.
COMMAND_LINES = [
    "--max-num-seqs 8 --max-model-len 4k --max_num_batched_tokens 2K --kv-cache-memory-bytes 1.5g -tp 2",
    "--compilation_config.mode 0 --compilation-config.cudagraph_mode=NONE -O0",
    "-O3 --no-enable-prefix-caching --enforce-eager --disable-log-stats",
    "--quantization fp8 --kv-cache-dtype fp8 --dtype half --gpu-memory-utilization 0.5",
    "--served-model-name a b --hf-token --allowed-media-domains x.org y.org --device-ids 0,GPU-1",
    "--hf-token=secret --moe-backend Triton --prefix-cache-retention-interval None",
    "--speculative-config.method ngram --speculative-config.num_speculative_tokens 3",
    '--seed 1 --kv-transfer-config {"kv_role":"kv_both","engine_id":"e","kv_connector_extra_config":{"x":8m}}',
    '--hf-overrides {"a":{"b":1}} --additional-config {"x":[1]} --lora-modules n=p',
    "--generation-config vllm --tool-call-parser hermes --enable-auto-tool-choice --reasoning-parser x",
]
QUESTIONS = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("generator", sys.argv[1])
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)
parser = generator.vllm_parser()
parsed = [{k: repr(v) for k, v in vars(parser.parse_args(words)).items()} for words in json.load(sys.stdin)]
print("\\n" + json.dumps({"description": generator.describe_parser(parser), "parsed": parsed}))
"""


def our_argv(words):
    parser = CommandParser(prog="proxima serve")
    arguments.add_arguments(parser)
    cli = arguments.cli_values(parser.parse_args(words))
    return vllm_flags.to_argv(load_settings(cli=cli, environ={}, preset="gpu", hardware=GPU).settings.engine)


def sample(flag):
    """A value that differs from the default where one is easy to name."""
    if flag.choices:
        value = next((choice for choice in flag.choices if choice != flag.default), flag.choices[0])
    elif flag.kind == "bool":
        value = not flag.default
    elif "int" in flag.kind:
        value = int(max(flag.bounds.get("ge", 7), flag.bounds.get("gt", 6) + 1, 7))
    elif flag.kind == "float":
        value = 0.5
    elif flag.kind in {"json", "config", "json_or_str"}:
        value = {}
    else:
        value = "some.text"
    return [value] if flag.nargs == "+" else value


SAMPLES = {dest: sample(flag) for dest, flag in vllm_flags.load_flags().items()}
SAMPLES["lora_modules"] = ["name=path", {"name": "other", "path": "elsewhere"}]
# Its choices depend on the machine, so vLLM alone checks them.
SAMPLES["mm_processor_device"] = "cpu"


@pytest.fixture(scope="module")
def answers():
    questions = [argv for line in COMMAND_LINES for argv in (line.split(), our_argv(line.split()))]
    questions.append(vllm_flags.to_argv(SAMPLES))
    # Variables that change vLLM's defaults: the description must not depend on the machine's environment.
    environ = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_USE_MODELSCOPE": "1"}
    command = [sys.executable, "-c", QUESTIONS, str(ROOT / "scripts" / "generate_vllm_flags.py")]
    result = subprocess.run(
        command, input=json.dumps(questions), env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_the_checked_in_flags_are_those_of_the_pinned_vllm(answers):
    checked_in = json.loads((ROOT / "config" / "proxima_config" / "vllm_flags.json").read_text(encoding="utf-8"))
    assert checked_in == answers["description"], "run scripts/generate_vllm_flags.py"


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line_means_to_vllm_what_it_means_without_us(answers, line):
    at = 2 * COMMAND_LINES.index(line)
    directly, through_us = answers["parsed"][at], answers["parsed"][at + 1]
    # The preset's own choice is not on the command line.
    assert through_us | {"performance_mode": directly["performance_mode"]} == directly


def test_every_flag_can_be_handed_to_vllm(answers):
    parsed = answers["parsed"][-1]
    for dest, value in SAMPLES.items():
        if vllm_flags.load_flags()[dest].kind not in {"config", "comma_list", "lora"}:
            assert parsed[dest] == repr(value), dest
