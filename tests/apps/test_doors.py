"""The doors from outside: what commands are handed is answered with one message, exit code 2."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.apps.commands import refused, run

from shardwise.apps.cli.output import document_of, print_document
from shardwise.commands.pricing.plans import load_plan
from shardwise.evidence.serving.runs import PUBLISHED_SERVING
from shardwise.evidence.training.table import PUBLISHED
from shardwise.models import load_model
from shardwise.models.zoo import hf_config
from shardwise.plans import model_hash

DIGITS = "9" * 5000
MODEL = ("--model", "llama-3-8b")
TRAIN = ["plan", "train", *MODEL, "--on", "v5e:4x4", "--batch", "64seq", "--seq", "4096"]
SERVE = ["plan", "serve", *MODEL, "--on", "v5e:2x2", "--input", "1024", "--output", "128"]
SHARD = ["shard", "A[I_X, J] * B[J, K] -> C[I_X, K]"]
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)
)


def message(capsys, args) -> str:
    """The one message, and short enough to read."""
    found = refused(capsys, args)
    assert len(found) < 700
    assert "\n" not in found
    return found


def replaced(args: list[str], flag: str, value: str) -> list[str]:
    at = args.index(flag)
    return [*args[:at], *args[at + 2 :], flag, value]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (replaced(TRAIN, "--batch", "1e300"), "numbers from 1e-30 to 1e+30 make sense"),
        (replaced(TRAIN, "--batch", "1,500"), "one comma may stand for a decimal point"),
        (replaced(TRAIN, "--batch", DIGITS), "must be positive and finite"),
        (replaced(TRAIN, "--seq", "1e18"), "at most 1e+12 makes sense"),
        (replaced(TRAIN, "--model", "x" * 300), "unknown model 'xxx"),
        (replaced(TRAIN, "--model", "/" + "x" * 300), "does not exist"),
        (replaced(TRAIN, "--model", "a\udcff"), "the argument 'a\\udcff' is not text in UTF-8"),
        (replaced(TRAIN, "--on", "\udcff"), "is not text in UTF-8"),
        ([*TRAIN, "--hw", "/dev/zero"], "cannot read hardware file '/dev/zero': it is not a file"),
        ([*TRAIN, "--hw", "x" * 300], "file name too long"),
        ([*TRAIN, "--set", "chip.network.hop_seconds=1e25"], "number of at most 1"),
        ([*TRAIN, "--set", f"chip.hbm_bandwidth={DIGITS}"], "it must be a number"),
        ([*TRAIN, "--price", "v5e=1e300"], "of at least 1e-06 and at most 1e+06"),
        ([*TRAIN, "--price", "v5e=nan"], "it must be a positive number of US dollars"),
        ([*TRAIN, "--tokens", "1T", "--mfu", "nan%"], "is not a share"),
        ([*TRAIN, "--tokens", "1T", "--mfu", "40%%"], "is not a share"),
        (["hw", "show", "v5e", "--set", "chip.jax_devices_per_chip=1e12"], "at most 64"),
        (["hw", "show", "v5e", "--set", "chip.jax_devices_per_chip=2.5"], "a whole number"),
        (["hw", "show", "v5e", "--set", "chip.efficiency.matmul=1e-300"], "at most 1"),
        (["hw", "show", "h100", "--set", "chip.network.domain=1e300"], "at most 1e+06"),
        (["model", "show", "llama-3-8b", "--seq", "1e30"], "a whole number of tokens"),
        ([*SHARD, "--dims", "I=8,J=8,K=8", "--mesh", f"X={DIGITS}"], "mesh axis 'X' has degree"),
        ([*SHARD, "--dims", "I=1e30,J=8,K=8", "--mesh", "X=2"], "at most 1e+15 makes sense"),
        (["plan", "sweep", *TRAIN[2:], "--tokens", "1T", "--days", "nan"], "--days is 'nan'"),
        (["train", "p.yaml", "--data", "x", "--steps", "0"], "--steps is 0"),
        (["train", "p.yaml", "--data", "x", "--steps", "1", "--seed", "-1"], "--seed is -1"),
        (["train", "p.yaml", "--data", "x", "--steps", "1", "--lr", "nan"], "--lr is 'nan'"),
        (["compile", "p.yaml", "--timeout", "inf"], "--timeout is 'inf'"),
    ],
)
def test_options(capsys, args, said):
    assert said in message(capsys, args)


@pytest.fixture
def plan(tmp_path) -> Path:
    """A training plan that the planner did not need to write."""
    path = tmp_path / "plan.yaml"
    cfg = load_model("llama-3-8b")
    path.write_text(
        f"kind: train\nmodel: llama-3-8b\nmodel_hash: {model_hash(cfg)}\nslice: v5e:4x4\n"
        "mesh: {fsdp: 16}\nbox: [4, 4]\nglobal_batch_sequences: 64\nsequence_length: 4096\n"
        "microbatches: 1\nlayers_per_stage: [32]\n"
    )
    assert load_plan(path)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "holds more than 50,000 values"),
        ("&a [*a]", "an alias of its own container"),
        ("[" * 5000, "nests deeper than 50 levels"),
        ("model: a\nmodel: b", "line 2: the key 'model' appears twice"),
        (f"batch: {DIGITS}", "is not YAML"),
        ("batch: .inf", "'batch' is inf; numbers must be finite"),
        ("model: a\0", "holds a NUL byte"),
    ],
)
def test_plans(capsys, tmp_path, text, said):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert said in message(capsys, ["plan", "show", path])


def test_a_value_of_a_plan_is_finite(capsys, plan):
    for setting in ("expert_capacity=.inf", "expert_capacity=1.0e+400"):
        assert "numbers must be finite" in message(capsys, ["plan", "show", plan, "--set", setting])
    assert "nests deeper" in message(capsys, ["plan", "show", plan, "--set", "mesh=" + "[" * 5000])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("mtp_layers=1000000000000", "mtp_layers is 1000000000000; it must be at least 0 and at"),
        ("mesh.fsdp=1000000000000", "the degree of mesh axis 'fsdp' is 1000000000000; it must be"),
        ("layers_per_stage=[1000000000000]", "an entry of layers_per_stage is 1000000000000"),
        ("global_batch_sequences=1000000000000000000", "it must be at least 1 and at most"),
        ("sequence_length=1000000000000000000", "it must be at least 1 and at most"),
        (f"model_hash={'x' * 5000}", "key 'model_hash' has 5,000 characters"),
        ("lora_rank=1000000000000", "it must be at least 0 and at most 16,777,216"),
        ("expert_imbalance=1.0e+300", "expert_imbalance is 1e+300; it must be at least 1"),
        ("packed_lengths=[-4096, 8192]", "packed_lengths is -4096; it must be at least 1"),
    ],
)
def test_each_number_of_a_plan_has_a_range(capsys, plan, setting, said):
    assert said in message(capsys, ["plan", "show", plan, "--set", setting])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON at column 1"),
        ("[" * 5000, "nests deeper than 50 levels"),
        ('{"hidden_size": NaN}', "a number is NaN"),
        ('{"hidden_size": ' + DIGITS + "}", "a number has 5000 digits"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
    ],
)
def test_configs(capsys, tmp_path, text, said):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert said in message(capsys, ["model", "show", path])


def test_a_config_with_a_byte_order_mark(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(hf_config("llama-3-8b")), encoding="utf-8-sig")
    assert run(capsys, "model", "show", path)[0] == 0
    assert hf_config(path) == hf_config("llama-3-8b")  # what --save-hf reads after the training


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "", "has no 'id'"),
        ("a.toml", 'id = "h100"\nbase = []', "'base' in hardware file"),
        ("a.toml", f'id = "h100"\nhbm_bytes = {DIGITS}', "is not TOML"),
        ("a.toml", 'id = "h100"\nhbm_bytes = inf', "'hbm_bytes' is inf; numbers must be finite"),
        ("a.toml", 'id = "h100"\ncores = 0', "it must be a positive number of at least 1"),
        ("a.toml", ".".join("a" * 60_000) + " = 1", "a key of more than 50 parts"),
        ("a.yaml", BOMB, "holds more than 50,000 values"),
        ("a.json", "[" * 5000, "nests deeper than 50 levels"),
        ("a.yaml", "id: h100\nname: [1]", "'name' of chip 'h100' is [1]; it must be text"),
    ],
)
def test_hardware_files(capsys, tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    assert said in message(capsys, ["hw", "show", "h100", "--hw", path])


def table_with(tmp_path, source: Path, **changes: str) -> Path:
    """The published table's header and first row, with other values."""
    with source.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header, first = next(rows), next(rows)
    for name, value in changes.items():
        first[header.index(name)] = value
    path = tmp_path / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, first])
    return path


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e400", "nan%", DIGITS, ""])
def test_a_table_with_a_value_that_no_run_has_passes_no_check(capsys, tmp_path, value):
    path = table_with(tmp_path, PUBLISHED, step_seconds=value)
    said = message(capsys, ["validate", path, "--check", "1%"])
    assert "line 2, run '" in said
    assert "column 'step_seconds' is" in said or not value
    path = table_with(tmp_path, PUBLISHED_SERVING, tpot_ms=value or "x")
    said = message(capsys, ["validate", "--serving", path, "--check", "1%"])
    assert "line 2: column 'tpot_ms' is" in said


@pytest.mark.parametrize("name", ["heads", "layers", "d_ff", "num_devices", "global_batch_seqs"])
@pytest.mark.parametrize("value", ["0", "nan", "inf", "1e30", "-1", DIGITS])
def test_a_row_with_a_size_that_no_model_has_is_left_out_with_the_reason(
    capsys, tmp_path, name, value
):
    path = table_with(tmp_path, PUBLISHED, **{name: value})
    said = message(capsys, ["validate", path])
    assert "can be priced; the first is line 2, run '" in said
    assert f"column '{name}' is " in said


@pytest.mark.parametrize("flags", [(), ("--serving",)])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; its first line must name its columns"),
        ("a,b\n1,2\n", "lacks the column(s)"),
        ("a,a\n", "names the column 'a' twice"),
        ("a,b\n1\n", "line 2: it has 1 cells and the header has 2"),
        ('a,b\n1,"2\n' + "x\n" * 100_000, "over 131,072 characters (is a quote not closed?)"),
    ],
)
def test_tables(capsys, tmp_path, flags, text, said):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    found = message(capsys, ["validate", path, *flags])
    assert said in found or "lacks the column(s)" in found


def test_a_wide_table_of_servers_without_a_column(capsys, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("ttft_ms,tpot_ms\n1,2\n")
    said = message(capsys, ["validate", "--serving", path])
    assert "lacks the column(s) source, citation" in said


def test_documents_hold_no_infinity(capsys):
    """An unset age of a queue, an endless deadline: null, and a warning that says which."""
    answer = SimpleNamespace(
        result={"a": float("inf"), "b": [float("nan")]}, resolved={}, warnings=(), provenance={}
    )
    print_document(document_of(answer, {}))
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert found["result"] == {"a": None, "b": [None]}
    assert found["warnings"] == [
        "result.a is inf, which JSON has no number for: null",
        "result.b[0] is nan, which JSON has no number for: null",
    ]
