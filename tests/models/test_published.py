"""docs/published_models.md: published configs of 2025-26, counted as their classes count them."""

import sys
from pathlib import Path

import pytest

from shardwise.models import load_model, params_active, params_total

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "published_models.md"
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| model ")
]


def test_thirty_or_more_are_named_with_their_source_and_exact():
    assert len(ROWS) >= 30
    for *_, against, source in ROWS:
        assert against.startswith("exact")
        assert source


def test_the_page_says_what_is_counted():
    for name, hub_id, architecture, total, active, *_ in ROWS:
        cfg = load_model(name)
        assert (cfg.provenance["hf_id"], cfg.architecture) == (hub_id, architecture)
        counts = f"{params_total(cfg):,}", f"{params_active(cfg):,}"
        assert counts == (total, active), name


@pytest.mark.torch
def test_classes_of_transformers_still_count_so(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    from published_models import row

    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for name in ("granite-4.0-h-tiny", "kimi-linear-48b-a3b", "mistral-large-3"):
        assert row(name) in lines
