"""lm-eval: multiple choice by echoed logprobs, and answers of chats, over tasks of its own."""

import json
import os
import tempfile
from pathlib import Path

from tests.clients.served import ran

NEEDS = ("lm-eval[api]==0.4.13", "transformers")
CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["{{{{a}}}}", "{{{{b}}}}"]
doc_to_target: right
metric_list: [{{metric: acc}}]
"""
CHAT = """
task: talk
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["zzz"], max_gen_toks: 8, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""
TASKS = {
    "local-completions": ("choice", CHOICE, "/v1/completions"),
    "local-chat-completions": ("talk", CHAT, "/v1/chat/completions"),
}


def run(url: str, folder: Path, programs: Path) -> dict:
    """Both models of lm-eval; the figures of the record."""
    around = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = {"version": NEEDS[0].partition("==")[2]}
    with tempfile.TemporaryDirectory() as passing:
        rows = Path(passing) / "rows.jsonl"
        lines = (
            {"question": f"What is {i} and {i}?", "a": f" {2 * i}", "b": f" {i}", "right": i % 2}
            for i in range(20)
        )
        rows.write_text("\n".join(map(json.dumps, lines)))
        for model, (task, text, path) in TASKS.items():
            (Path(passing) / f"{task}.yaml").write_text(text.format(rows=rows))
            words = f"model={folder.name},base_url={url}{path},num_concurrent=4,max_retries=1"
            words += f",tokenizer={folder},tokenizer_backend=huggingface"
            chat = ("--apply_chat_template",) if task == "talk" else ()
            ran(
                *(str(programs / "lm-eval"), "run", "--model", model, "--model_args", words),
                *("--tasks", task, "--include_path", passing, *chat),
                *("--output_path", f"{passing}/{task}", "--log_samples"),
                env=around | {"HF_HUB_OFFLINE": "1", "HF_HOME": passing},
                cwd=passing,
            )
            (said,) = Path(passing).glob(f"{task}/**/results_*.json")
            (told,) = Path(passing).glob(f"{task}/**/samples_*.jsonl")
            samples = [json.loads(line) for line in told.read_text().splitlines()]
            assert len(samples) == 20
            if task == "choice":
                scores = [float(pair[0]) for s in samples for pair in s["filtered_resps"]]
                assert len(scores) == 40
                assert all(score < 0 for score in scores)
            else:
                assert all(s["filtered_resps"][0] for s in samples)
            results = json.loads(said.read_text())["results"][task]
            found[model] = {key: v for key, v in results.items() if isinstance(v, int | float)}
            found[model]["samples"] = len(samples)
    return found
