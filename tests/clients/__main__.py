"""Run clients against a server: `python -m tests.clients NAME... [--keep FOLDER] [--record]`."""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from environments import environment, free_port
from llama_folder import write_llama
from tests.clients.served import ours, served

RECORD = Path(__file__).with_name("record.json")
NAMES = (
    *("openai_sdk", "curl", "lm_eval_harness", "vllm_bench", "guidellm_load", "vllm_oracle"),
    *("aider_edit", "sglang_bench"),
)


def main() -> None:
    """Each client in turn; the first that is not content ends it."""
    options = _options()
    with ExitStack() as stack:
        passing = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = (options.model or write_llama((options.keep or passing) / "llama-tiny")).resolve()
        command = ours(folder)
        url = options.url or stack.enter_context(served(command, free_port(), passing / "log"))
        for name in options.names:
            client = import_module(f"tests.clients.{name}")
            programs = None
            if client.NEEDS:
                made = environment(client.NEEDS, options.keep)
                programs = stack.enter_context(made).resolve()
            found = {"date": str(datetime.now(UTC).date()), **client.run(url, folder, programs)}
            print(json.dumps({name: found}), flush=True)
            if options.record:
                record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
                record[name] = found
                RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a server as real clients do.")
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME")
    parser.add_argument("--model", type=Path, help="a checkpoint; default a small Llama")
    parser.add_argument("--url", help="a server that runs; with it --model is its checkpoint")
    parser.add_argument("--keep", type=Path, help="where environments stay")
    parser.add_argument("--record", action="store_true", help="write what was found to record.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
