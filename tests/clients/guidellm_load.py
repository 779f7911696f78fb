"""guidellm: synthetic prompts over four streams at once."""

import json
import os
import tempfile
from pathlib import Path

from tests.clients.served import ran

NEEDS = ("guidellm==0.8.1",)


def run(url: str, folder: Path, programs: Path) -> dict:
    """30 requests; the figures of the record."""
    around = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as passing:
        ran(
            *(str(programs / "guidellm"), "run"),
            *("--backend", f"kind=openai_http,target={url},model={folder.name}"),
            *("--profile", "kind=concurrent,streams=4"),
            *("--constraint", "kind=max_requests,count=30"),
            *("--tokenizer", f"kind=hf_auto,model={folder}"),
            *("--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16"),
            *("--output", f"kind=json,path={passing}/found.json"),
            env=around | {"HF_HUB_OFFLINE": "1"},
            cwd=passing,
        )
        said = json.loads((Path(passing) / "found.json").read_text())
    metrics = said["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"]) == (30, 0), totals
    return {
        "version": NEEDS[0].partition("==")[2],
        "successful": totals["successful"],
        "errored": totals["errored"],
        "output_tokens_per_second": metrics["output_tokens_per_second"]["successful"]["mean"],
    }
