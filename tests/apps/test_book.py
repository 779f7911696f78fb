"""`shardwise book` and the audit that `plan show` prints."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.commands import run

from shardwise.book.figures import figure_ids
from shardwise.plans.named import audit_names, plan_path


def result(capsys, *args):
    code, out, err = run(capsys, *args, "--json")
    assert code == 0, err
    return json.loads(out)["result"]


def test_list_names_every_figure_and_plan(capsys):
    entries = result(capsys, "book", "list")["entries"]
    ids = [e["id"] for e in entries]
    assert ids == [*figure_ids(), *(f"audit:{n}" for n in audit_names())]
    fifth = result(capsys, "book", "list", "--chapter", "5")["entries"]
    assert {e["id"] for e in fifth} == {i for i in figure_ids() if i.startswith("fig.5.")}
    code, out, _ = run(capsys, "book", "list")
    assert code == 0
    assert all(i in out for i in ids)


def test_list_of_a_chapter_without_entries(capsys):
    code, out, err = run(capsys, "book", "list", "--chapter", "9")
    assert (code, out) == (2, "")
    assert "chapter '9' has nothing here; there are 5, 12" in err


def test_figure_as_json_table_and_csv(capsys, tmp_path):
    found = result(capsys, "book", "figure", "fig.5.ratio_curves")
    assert found["readings"]["fsdp_tokens_per_chip"] == pytest.approx(850)
    assert found["x"] == {"label": "tokens per chip", "unit": "tokens", "log": True}
    path = tmp_path / "curves.csv"
    code, out, _ = run(capsys, "book", "figure", "fig.5.ratio_curves", "--csv", path)
    assert code == 0
    assert "mixed_tokens_per_chip   108.4" in out
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["series", "tokens per chip [tokens]", "T_math / T_comms"]
    assert len(rows) == sum(len(s["x"]) for s in found["series"])
    assert float(rows[0][2]) == found["series"][0]["y"][0]


@pytest.mark.parametrize("figure_id", ["fig.5.math_comms", "fig.gpu.ragged", "fig.gpu.ar_curve"])
def test_plot(capsys, tmp_path, figure_id):
    path = tmp_path / "figure.png"
    code, _, err = run(capsys, "book", "figure", figure_id, "--plot", path)
    assert code == 0, err
    assert path.stat().st_size > 5000


def test_refusals(capsys, tmp_path):
    code, out, err = run(capsys, "book", "figure", "fig.5.ratio")
    assert (code, out) == (2, "")
    assert "unknown figure 'fig.5.ratio'; did you mean" in err
    code, _, err = run(capsys, "book", "figure", "fig.gpu.ragged", "--plot", tmp_path / "a.gif")
    assert (code, "format" in err) == (2, True)


def test_help_loads_neither_jax_nor_matplotlib():
    said = "import sys\nfrom shardwise.apps.cli import main\ntry:\n    main(['book', 'list'])\n"
    said += "except SystemExit:\n    pass\n"
    said += "assert not {'jax', 'matplotlib', 'scipy'} & set(sys.modules), 'too much loaded'\n"
    subprocess.run([sys.executable, "-c", said], check=True, capture_output=True)


# The audit of plan show -------------------------------------------------------------------------


def test_show_an_audited_plan_by_name_and_by_path(capsys):
    by_name = result(capsys, "plan", "show", "audit:megatron-70b")
    by_path = result(capsys, "plan", "show", plan_path("audit:megatron-70b"))
    assert by_name["audit"] == by_path["audit"]
    audit = by_name["audit"]
    assert audit["compute_bound"] is True
    assert audit["tokens_per_chip"] == 2048
    assert [v["strategy"] for v in audit["verdicts"]] == ["data", "tensor", "stage"]
    assert audit["verdicts"][0]["rule_need"] == pytest.approx(1237.5)
    assert audit["verdicts"][0]["ok"] is True


def test_the_audit_is_printed(capsys):
    code, out, _ = run(capsys, "plan", "show", "audit:deepseek-v3-2048", "--book")
    assert code == 0
    table = out[out.index("book rule") :]
    assert "data            2  30,720" in table
    assert "expert         64   2,048" in table
    assert "no" in table.splitlines()[3].split()[-1]


def test_numbers_of_the_user_reach_the_audit(capsys):
    args = ("plan", "show", "audit:megatron-32b")
    assert result(capsys, *args)["audit"]["compute_bound"] is False
    slower = ("--set", "chip.peak_flops.bf16=8e14")
    assert result(capsys, *args, *slower)["audit"]["compute_bound"] is True


def test_a_config_beside_a_plan_is_found(capsys, tmp_path):
    source = plan_path("audit:megatron-16b")
    for path in (source, source.with_suffix(".json")):
        (tmp_path / path.name).write_text(path.read_text())
    found = result(capsys, "plan", "show", tmp_path / source.name)
    assert found["audit"]["tokens_per_chip"] == 4096


def test_an_unknown_audit_lists_the_others(capsys):
    code, out, err = run(capsys, "plan", "show", "audit:megatron-71b")
    assert (code, out) == (2, "")
    assert "unknown audited plan 'megatron-71b'; did you mean" in err
    assert "'megatron-70b'" in err


def test_the_files_are_shipped():
    """pyproject names the folders that hold them."""
    import tomllib

    root = Path(__file__).parents[2]
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = data["package-data"]["shardwise"]
    package = root / "src" / "shardwise"
    found = {p.relative_to(package).as_posix() for at in patterns for p in package.glob(at)}
    assert {f"plans/data/audits/{name}.yaml" for name in audit_names()} <= found
    assert "book/data/figures/all_reduce_8xh100.csv" in found
