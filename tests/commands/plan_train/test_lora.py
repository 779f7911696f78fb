"""`plan train --lora`: adapters beside frozen weights, in searches, plan files and Python."""

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import BadRequest
from shardwise.plans import save_plan

JOB = {"batch": "2seq", "seq": 512, "remat": "block", "pins": {"fsdp": 1}}


def planned(**words):
    return sw.plan_train("qwen3-0.6b", "h100:1", **JOB, **words)


def test_what_is_trained_and_how_the_weights_lie():
    found = planned(lora=16, targets="q_proj,v_proj", quantize="nf4")
    plan, said = found.best.plan, found.result["adapters"]
    assert (plan.lora_rank, plan.lora_targets, plan.quantize) == (16, ("q", "v"), "nf4")
    assert said["matrices"] == ["q", "v"]
    assert said["trained_params"] == 28 * 16 * ((1024 + 2048) + (1024 + 1024))
    page = " ".join(str(found).split())
    assert "LoRA of rank 16 on q, v (2.29M parameters); the weights are frozen, stored in" in page
    assert "runs in PEFT and what builds on it" in page
    assert "adapters" not in planned().result


def test_a_plan_file_has_what_the_search_had(tmp_path):
    found = planned(lora=8, targets=["up", "down"], quantize="int8")
    file = tmp_path / "plan.yaml"
    save_plan(found.best.plan, file)
    text = file.read_text()
    assert "lora_targets" in text
    assert "library: transformers" in text
    shown = sw.plan_show(file)
    assert shown.best.plan == found.best.plan
    assert shown.result["peak_bytes_per_chip"] == found.result["peak_bytes_per_chip"]


def test_a_plan_without_adapters_says_nothing_of_them(tmp_path):
    file = tmp_path / "plan.yaml"
    save_plan(planned().best.plan, file)
    assert not {"lora_targets", "quantize", "library"} & set(file.read_text().split(":"))


def test_adapters_can_be_written_by_hand(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(
        "model: qwen3-0.6b\nslice: h100:1\nmesh: {fsdp: 1}\nbatch: 2seq\nlength: 512\n"
        "lora_rank: 16\nquantize: nf4\n"
    )
    shown = sw.plan_show(file)
    assert (shown.best.plan.stack, shown.best.plan.library) == ("fsdp", "transformers")
    assert shown.result["adapters"]["rank"] == 16
    assert shown.result["runs_in"] == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"quantize": "nf4"}, "give lora=RANK too"),
        ({"targets": "q"}, "give lora=RANK too"),
        ({"lora": 16, "quantize": "fp4"}, "unknown value of quantize 'fp4'"),
        ({"lora": 16, "targets": "wq"}, "unknown matrix to adapt 'wq'; did you mean 'q'?"),
        ({"lora": -1}, "lora is -1; it must be a whole number"),
        ({"sets": {"lora_rank": "16"}}, "give lora=16"),
        ({"lora": 16, "software": "torchtitan"}, "lora_rank 16: its export writes 0"),
    ],
)
def test_what_cannot_be_is_refused(words, said):
    with pytest.raises(BadRequest) as refused:
        planned(**words)
    assert said in str(refused.value)


def test_what_only_adapters_have_is_refused_without_them(tmp_path):
    file = tmp_path / "plan.yaml"
    save_plan(planned().best.plan, file)
    with pytest.raises(BadRequest, match="quantize is nf4, but lora_rank is 0"):
        sw.plan_show(file, sets={"quantize": "nf4"})


def test_showing_and_exporting_refuse_adapters_in_one_sentence(tmp_path):
    plan = sw.plan_train("llama-3.2-1b", "h100:1", software="torchtitan", **JOB).best.plan
    file, file_lora = tmp_path / "plan.yaml", tmp_path / "lora.yaml"
    save_plan(plan, file)
    save_plan(replace(plan, lora_rank=16), file_lora)
    shown = sw.plan_show(file, sets={"lora_rank": "16"})
    (note,) = [w for w in shown.warnings if "does not run it" in w]
    with pytest.raises(BadRequest) as refused:
        sw.export(file_lora, to="torchtitan")
    assert str(refused.value) in note


def test_a_compiler_for_tpus_has_no_layers_of_transformers():
    found = sw.plan_train("qwen3-0.6b", "v5e:1x1", batch="1seq", seq=256, remat="block", lora=8)
    assert found.best.plan.library == "plain"
    assert "no program in particular" in str(found)
