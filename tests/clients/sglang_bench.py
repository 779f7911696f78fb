"""sglang's bench_serving: random prompts to both of OpenAI's endpoints.

Its wheel asks for CUDA's packages, of which the benchmark uses none: its folder is taken out of the
wheel, with the module and the name that it imports of sglang's server.
"""

import json
import os
import tempfile
import zipfile
from pathlib import Path

from tests.clients.served import ran

VERSION = "0.5.23"
NEEDS = (
    *("aiohttp", "datasets", "msgspec", "numpy", "orjson", "pillow", "psutil", "pybase64"),
    *("pyzmq", "requests", "tqdm", "transformers"),
)
PARTS = ("sglang/benchmark/", "sglang/srt/utils/network.py")
HOST = "sglang/srt/disaggregation/utils.py"
FIGURES = ("completed", "total_output_tokens")
BACKENDS = {"sglang-oai": "completions", "sglang-oai-chat": "chat"}


def run(url: str, folder: Path, programs: Path) -> dict:
    """Both endpoints; the figures of the record."""
    around = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    around |= {"HF_HUB_OFFLINE": "1", "no_proxy": "127.0.0.1"}
    found = {"version": VERSION}
    with tempfile.TemporaryDirectory() as passing:
        modules = _modules(Path(passing), programs)
        (Path(passing) / "texts.json").write_text(json.dumps(_texts()))
        for backend, name in BACKENDS.items():
            path = Path(passing) / f"{name}.jsonl"
            ran(
                *(str(programs / "python"), "-m", "sglang.benchmark.serving"),
                *("--backend", backend, "--base-url", url, "--model", folder.name),
                *("--tokenizer", str(folder), "--dataset-name", "random"),
                *("--dataset-path", f"{passing}/texts.json", "--random-range-ratio", "1"),
                *("--random-input-len", "64", "--random-output-len", "16", "--num-prompts", "40"),
                *("--max-concurrency", "8", "--output-file", str(path)),
                env=around | {"PYTHONPATH": str(modules)},
                cwd=passing,
            )
            said = json.loads(path.read_text())
            assert said["completed"] == 40, said
            found[name] = {figure: said[figure] for figure in FIGURES}
    return found


def _modules(passing: Path, programs: Path) -> Path:
    """A folder with the benchmark's modules."""
    pip = (str(programs / "python"), "-m", "pip", "download", "--quiet", "--no-deps")
    ran(*pip, f"sglang=={VERSION}", "--dest", str(passing))
    (wheel,) = passing.glob("sglang-*.whl")
    made = passing / "modules"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(made, [n for n in packed.namelist() if n.startswith(PARTS)])
        lines = packed.read(HOST).decode().splitlines()
    (line,) = (line for line in lines if line.startswith("FAKE_BOOTSTRAP_HOST ="))
    (made / HOST).parent.mkdir(parents=True)
    (made / HOST).write_text(line + "\n")
    return made


def _texts() -> list[dict]:
    """Conversations in ShareGPT's form, whose words the prompts are made of."""
    words = " ".join(f"word {i} of a long text about matmuls" for i in range(40))
    turns = [{"from": kind, "value": words} for kind in ("human", "gpt")]
    return [{"conversations": turns} for _ in range(60)]
