"""`shardwise plan train`: every refusal, and the exit code where nothing fits."""

import json

import pytest
from tests.apps.commands import document, refused, run
from tests.apps.test_plan_train import HELD, SMALL, small


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # Names that are nearly right.
        ({"model": "llama-3-8bb"}, "unknown model 'llama-3-8bb'; did you mean 'llama-3-8b'"),
        ({"on": "v5q:4x4"}, "unknown chip 'v5q'; did you mean 'v5p' or 'v5e'?"),
        ({"pin": "tensro=2"}, "unknown mesh axis 'tensro'; did you mean 'tensor'?"),
        ({"dtype": "bf61"}, "unknown dtype 'bf61'; did you mean 'bf16'"),
        ({"constants": "bok"}, "unknown constants 'bok'; did you mean 'book'?"),
        ({"remat": "blok"}, "unknown value of --remat 'blok'; did you mean 'block'?"),
        ({"remat": "foo"}, "'foo'; known: none, matmul_outputs, block, offload"),
        # What other programs call it.
        (
            {"remat": "selective"},
            "value of --remat 'selective'; shardwise calls it 'matmul_outputs'",
        ),
        ({"pin": "tp=8"}, "unknown mesh axis 'tp'; shardwise calls it 'tensor'"),
        ({"pin": "PP=2"}, "unknown mesh axis 'PP'; shardwise calls it 'stage'"),
        ({"schedule": "Interleaved1F1B"}, "shardwise calls it 'interleaved'"),
        ({"for": "megatron-lm"}, "shardwise calls it 'megatron'"),
        ({"optimizer": "adamw"}, "shardwise calls it 'adam'"),
        ({"dtype": "bfloat16"}, "unknown dtype 'bfloat16'; shardwise calls it 'bf16'"),
        ({"price": "v5q=1"}, "unknown chip 'v5q'"),
        ({"set": "chip.hbm_bandwith=1"}, "unknown chip field 'hbm_bandwith'; did you mean"),
        ({"set": "compiled=false"}, "'compiled' is a choice of a plan, and this searches plans"),
        ({"expert_imbalance": "1.2"}, "--expert-imbalance needs routed experts, and llama"),
        ({"expert_imbalance": "0.5", "model": "mixtral-8x7b"}, "--expert-imbalance 0.5 is below 1"),
        # Slices.
        ({"on": "v5p:3x3x3"}, "'v5p:3x3x3' is not a slice of v5p, whose slices are 2x2x1"),
        ({"on": "v5e:3x3"}, "'v5e:3x3' is not a slice of v5e"),
        ({"on": "v5e:4x4x4"}, "'v5e:4x4x4' is not a slice of v5e"),
        ({"on": "h100:9"}, "h100 joins at most 8 chips in one domain"),
        ({"on": "0*v5p:4x4x4"}, "the count 0 must be 1 or more"),
        ({"on": "v5e:0x4"}, "a size of 0 is not a slice"),
        ({"on": "v5e:-4x4"}, "is not of the form COUNT*CHIP:SHAPE"),
        ({"on": ""}, "slice '' is not of the form COUNT*CHIP:SHAPE"),
        ({"on": "99999999*v5e:4x4"}, "at most 10,000,000 make sense"),
        # Batches and lengths.
        (
            {"batch": "4e6", "seq": "4096"},
            (
                "batch '4e6' is 4,000,000 tokens, no whole number of sequences of 4096 tokens; the "
                "nearest are --batch 976seq (3,997,696 tokens) or --batch 977seq (4,001,792 tokens)"
            ),
        ),
        ({"batch": "100"}, "to mean sequences write --batch 100seq, which is 204,800 tokens"),
        *[({"batch": n}, f"batch '{n}' must be positive and finite") for n in ("0", "-4Mi")],
        ({"batch": "nan"}, "batch 'nan' is not a number such as 1024, 4Mi"),
        ({"batch": "64sqe"}, "16e6, of tokens, or 64seq"),
        ({"batch": "inf"}, "batch 'inf' is not a number"),
        ({"batch": "seq"}, "batch '' is not a number"),
        ({"batch": "0.5seq"}, "batch '0.5seq' is 0.5; it must be a whole number"),
        ({"batch": "1e40"}, "batch '1e40' is 1e+40; numbers from 1e-30 to 1e+30 make sense"),
        ({"batch": "1e30"}, "batch '1e30' in sequences is 4.88281e+26; at most 1e+12 makes sense"),
        ({"batch": "1e30seq"}, "batch '1e30seq' is 1e+30; at most 1e+12 makes sense"),
        ({"batch": "1e400"}, "batch '1e400' must be positive and finite"),
        *[({"seq": n}, f"--seq '{n}' must be positive and finite") for n in ("0", "-5")],
        ({"seq": "1e30"}, "--seq is 1e+30; at most 1e+12 makes sense"),
        ({"seq": "4096.5"}, "--seq is 4096.5; it must be a whole number"),
        ({"seq": "long"}, "--seq 'long' is not a number"),
        (
            {"batch": "17seq", "pin": "fsdp=16"},
            (
                "divides a batch of 17 sequences x 2048 tokens; nearest legal batches: "
                "16 sequences or 32 sequences"
            ),
        ),
        # Pins.
        ({"pin": "tensor=0"}, "pin 'tensor=0' is not AXIS=DEGREE; write it like --pin tensor=8"),
        ({"pin": "tensor=-2"}, "pin 'tensor=-2' is not AXIS=DEGREE"),
        ({"pin": "tensor=²"}, "pin 'tensor=²' is not AXIS=DEGREE"),
        ({"pin": "tensor"}, "pin 'tensor' is not AXIS=DEGREE"),
        ({"pin": "tensor=99999999999999999999"}, "is not AXIS=DEGREE"),
        ({"pin": "tensor=3"}, "mesh axis 'tensor' of 3 does not divide N=32"),
        ({"pin": "expert=2"}, "llama-3-8b has no routed experts, so it cannot take effect"),
        ({"pin": "fsdp=17"}, "no part of v5e:4x4 (16 devices) has that"),
        ({"pin": "stage=64"}, "llama-3-8b has 32 layers; every stage needs one"),
        # Shares, lengths of runs, sizes.
        *[({"mfu": n, "tokens": "1T"}, f"--mfu '{n}' is outside 0..100%") for n in ("400%", "0")],
        *[
            ({"mfu": n, "tokens": "1T"}, f"--mfu '{n}' is not a share; write it")
            for n in ("nan", "half")
        ],
        ({"mfu": "40%"}, "--mfu changes only the days of a run; give --tokens too"),
        ({"params": "70e9"}, "--params changes only the arithmetic of --mfu"),
        ({"tokens": "-1T"}, "--tokens '-1T' must be positive and finite"),
        ({"tokens": "1e300"}, "--tokens '1e300' is 1e+300; numbers from 1e-30 to 1e+30 make"),
        ({"tokens": "nan"}, "--tokens 'nan' is not a number"),
        ({"tokens": "1T", "mfu": "40%", "params": "0"}, "--params '0' must be positive"),
        ({"top": "-1"}, "--top is -1; it must be a whole number of at least 0 and at most 50"),
        ({"top": "many"}, "--top is 'many'; it must be a whole number"),
        ({"max_hbm": "1"}, "--max-hbm '1' is not a number with a unit, such as"),
        ({"max_hbm": "-1GB"}, "--max-hbm '-1GB' must be positive and finite"),
        ({"price": "v5e=-1"}, "it must be a positive number of US dollars"),
        ({"price": "v5e"}, "price 'v5e' is not CHIP=USD"),
        ({"set": "chip.hbm_bandwidth=-1"}, "it must be a positive number"),
        ({"set": "chip.efficiency.matmul=2"}, "it must be a positive number of at most 1"),
        ({"hw": "missing.toml"}, "cannot read hardware file 'missing.toml'"),
        # Numbers that the catalogue lacks.
        ({"dtype": "fp4"}, "chip 'v5e' has no peak for dtype 'fp4' in the catalogue; it has"),
        ({"on": "v100:8"}, "chip 'v100' has no peak for dtype 'bf16' in the catalogue"),
        # Flags.
        ({"model": None}, "Missing option '--model'. Zoo name, config.json, or a folder"),
        ({"batch": None}, "Missing option '--batch'"),
        ({"bacth": "3"}, "No such option '--bacth'. Did you mean '--batch'?"),
        ({"csv": "/nowhere/at/all/p.csv"}, "cannot write '/nowhere/at/all/p.csv'"),
    ],
)
def test_bad_requests(capsys, changes, said):
    assert said in refused(capsys, small(**changes))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/tmp", "is a directory"),
        ("/nowhere/at/all/p.yaml", "the folder '/nowhere/at/all' does not exist"),
    ],
)
def test_a_plan_file_that_cannot_be_written(capsys, path, said):
    assert said in refused(capsys, [*SMALL, "-o", path])


def test_contradictory_pins(capsys):
    args = [*SMALL, "--pin", "tensor=2", "--pin", "tensor=4"]
    said = "--pin gives 'tensor' two values, 2 and 4; leave one of them out"
    assert refused(capsys, args) == said
    assert run(capsys, *SMALL, *HELD, "--pin", "tensor=2", "--pin", "tensor=02")[0] == 0


def test_a_chip_without_its_hbm_is_asked_for_it(capsys, tmp_path):
    """A hardware file may leave numbers out; the answer names the one that it needs."""
    hw = tmp_path / "chip.toml"
    hw.write_text(
        'id = "mystery"\nname = "Mystery"\nvendor = "nobody"\ncores = 1\n'
        "matmul_tile = [8, 128, 128]\njax_devices_per_chip = 1\nchips_per_host = 4\n"
        "[peak_flops]\nbf16 = 1e14\n[efficiency]\nmatmul = 1.0\nhbm = 1.0\nnetwork = 1.0\n"
        '[network]\nkind = "alone"\n'
    )
    said = refused(capsys, small(hw=str(hw), on="mystery:1"))
    assert "mystery" in said
    if "cannot" not in said:
        assert "hbm_usable_bytes" in said


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must lie between"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'; it must be an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must lie between"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": 0}, "hidden_size is 0; it must lie between"),
        ({"hidden_size": -4}, "hidden_size is -4; it must lie between"),
        ({"hidden_size": [512]}, "hidden_size is [512]; it must be an integer"),
        ({"vocab_size": 10**18}, "vocab_size is 1000000000000000000; it must lie between"),
        ({"architectures": ["FooForCausalLM"], "model_type": "foo"}, "unknown architecture 'Foo"),
    ],
)
def test_configs_that_cannot_be(capsys, tmp_path, changes, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    got = refused(capsys, small(model=str(path)))
    assert said in got
    assert "config.json" in got


def test_a_config_cut_off_at_any_place(capsys, tmp_path):
    path = tmp_path / "config.json"
    text = json.dumps(CONFIG)
    for end in (0, 1, 30, len(text) // 2, len(text) - 1):
        path.write_text(text[:end])
        said = refused(capsys, small(model=str(path)))
        assert "is not JSON at" in said
        assert "fetch the model's config.json again" in said


def test_a_config_of_its_own_is_planned(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for model in (tmp_path, tmp_path / "config.json"):
        assert document(capsys, *small(model=str(model)), *HELD)["result"]["chips_used"] > 0


def test_a_model_that_does_not_fit_exits_3_with_what_would(capsys):
    said = refused(capsys, small(model="llama-3.1-405b"), code=3)
    assert said.startswith("no plan fits v5e:4x4 = 16 chips")
    assert "GiB" in said
    assert "too much, mostly optimizer" in said
    assert said.endswith("use 2*v5e:16x16 (512 chips) or more")
    assert "\n" not in said


def test_a_chip_whose_largest_slice_is_too_small_exits_3(capsys):
    asked = [*small(model="kimi-k2-instruct", on="v5e", batch="256seq"), *HELD]
    said = refused(capsys, asked, code=3)
    assert said.startswith(
        "no slice of v5e is large enough; the largest: no plan with stage=1 pinned fits v5e:16"
    )


def test_too_low_a_limit_exits_3(capsys):
    assert "GiB (1 GB) usable" in refused(capsys, small(max_hbm="1GB"), code=3)
