"""curl: JSON in and out, a stream as it comes, refusals, and what orchestrators read."""

import json
from pathlib import Path

from tests.clients.served import ran

NEEDS = ()
JSON = ("-H", "content-type: application/json")


def run(url: str, folder: Path, programs: Path | None = None) -> dict:
    """Every kind of answer once; the figures of the record."""
    body = json.dumps({"prompt": "the", "max_tokens": 5, "temperature": 0})
    whole = json.loads(ran("curl", "-sS", f"{url}/v1/completions", *JSON, "-d", body))
    text = whole["choices"][0]["text"]
    streamed = json.dumps({"prompt": "the", "max_tokens": 5, "temperature": 0, "stream": True})
    lines = ran("curl", "-sSN", f"{url}/v1/completions", *JSON, "-d", streamed).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == text
    status = ran("curl", "-sS", "-w", "%{http_code}", f"{url}/v1/completions", *JSON, "-d", "{}")
    assert status.endswith("400")
    assert json.loads(status[:-3])["error"]["param"] == "prompt"
    assert ran("curl", "-sS", "-w", "%{http_code}", f"{url}/health") == "200"
    assert "vllm:generation_tokens_total" in ran("curl", "-sS", f"{url}/metrics")
    return {"version": ran("curl", "--version").split()[1], "events": len(events)}
