"""`shardwise export`: a plan file in the words of another framework or launcher, and back."""

from dataclasses import replace

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer


@command("export", "file as_json", file="Write here, not to stdout.")
def export(out: Outputs) -> None:
    """Write the plan in PATH for other software (--to), or read such a file back (--from).

    TARGET is maxtext, torchtitan, megatron, trl, axolotl, accelerate, deepspeed, jax, xpk, skypilot
    or slurm for a training plan, and vllm, sglang, trtllm, k8s, skypilot or slurm for a serving
    plan.
    """
    from shardwise.apps.cli.plan_train import against_lines
    from shardwise.boundary import spelt, write_text
    from shardwise.commands.base.layout import next_step
    from shardwise.commands.plan_file.export import ExportRequest
    from shardwise.plans import save_plan

    asked, file = request_of(ExportRequest), out.file
    answer = asked.answer()
    if file is not None and asked.to:
        write_text(file, answer.text, option="-o")
    elif file is not None:
        save_plan(answer.value, file)
    more: tuple[str, ...] = ()
    if file is not None and asked.from_:
        shown = next_step("next:", spelt("plan show", [file], {}))
        more = (shown, *against_lines(file, answer.value))
    way = "to" if asked.to else "from"
    show_answer(
        replace(answer, output=file and str(file)),
        out,
        {"path": str(asked.path), way: asked.to or asked.from_},
        page=[f"wrote {file}"] if file else None,
        more=more,
    )
