"""`shardwise check`: a launch script or a recipe read, priced, and what to change in it."""

from dataclasses import replace

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer


@command(
    "check",
    "file csv_path show_detail as_json",
    file="Write the file with the change of --apply here, not to stdout.",
)
def check(out: Outputs) -> None:
    """Check a launch script or recipe: whether it fits, its step time, and the changes that help
    most.

    PATH is a script or recipe of Megatron-LM, Megatron-Bridge, TorchTitan, MaxText, TRL, axolotl,
    accelerate or DeepSpeed.
    """
    from shardwise.boundary import write_text
    from shardwise.commands.plan_file.check import CheckRequest
    from shardwise.errors import BadRequest

    asked, file = request_of(CheckRequest), out.file
    if file is not None and asked.apply is None:
        raise BadRequest("-o writes the file with a change; choose it with --apply")
    answer = asked.answer()
    if file is not None:
        write_text(file, answer.text, option="-o")
    show_answer(
        replace(answer, output=file and str(file)),
        out,
        given(asked),
        page=[f"wrote {file}"] if file else None,
    )
