"""`vllm bench serve`: random prompts, and prompts that share a prefix."""

import json
import os
import tempfile
from pathlib import Path

from environments import VLLM
from tests.clients.served import ran

NEEDS = VLLM
FIGURES = ("completed", "failed", "total_output_tokens", "output_throughput", "median_ttft_ms")
LOADS = {
    "random": ("--random-input-len", "64", "--random-output-len", "16"),
    "prefix_repetition": (
        *("--prefix-repetition-prefix-len", "64", "--prefix-repetition-suffix-len", "16"),
        *("--prefix-repetition-num-prefixes", "4", "--prefix-repetition-output-len", "8"),
    ),
}


def run(url: str, folder: Path, programs: Path) -> dict:
    """Both loads; the figures of the record."""
    around = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    around |= {"HF_HUB_OFFLINE": "1", "no_proxy": "127.0.0.1"}
    found = {"version": NEEDS[0].partition("==")[2]}
    with tempfile.TemporaryDirectory() as passing:
        for load, lengths in LOADS.items():
            ran(
                *(str(programs / "vllm"), "bench", "serve", "--backend", "openai"),
                *("--base-url", url, "--model", str(folder), "--served-model-name", folder.name),
                *("--dataset-name", load, *lengths, "--num-prompts", "40"),
                *("--max-concurrency", "8", "--ignore-eos", "--save-result"),
                *("--result-dir", passing, "--result-filename", f"{load}.json"),
                env=around,
                cwd=passing,
            )
            said = json.loads((Path(passing) / f"{load}.json").read_text())
            assert (said["completed"], said["failed"]) == (40, 0), said
            found[load] = {name: said[name] for name in FIGURES}
    return found
