"""`shardwise profile`: run a plan or a function here, or read a capture, and say what took long."""

from dataclasses import replace

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import document_of, show_answer, stage_line
from shardwise.boundary.records import plain


@command("profile", "show_detail as_json")
def profile(out: Outputs) -> None:
    """Time steps of a plan or of a function on the devices here, op by op.

    Shows measured seconds beside compiled ones and, for a plan, predicted ones. With --capture
    nothing runs: it reads an .xplane.pb or trace.json.gz of a CPU, GPU or TPU.
    """
    from shardwise.commands.program.profile import Profile, ProfileRequest
    from shardwise.commands.program.profiling import write_profile

    asked = request_of(ProfileRequest)
    with stage_line() as watch:
        answer = asked.answer(watch)
    inputs, more = given(asked, out, without=("as_json",)), []
    if asked.capture is not None:
        read = ("capture", "hlo", "on", "mesh")
        inputs = {name: value for name, value in inputs.items() if name in read}
    if out.out is not None and isinstance(answer, Profile):
        doc = plain(document_of(answer, inputs))
        files = write_profile(out.out, answer.profiled, doc)
        answer = replace(answer, files=files)
        more = [f"\nCapture and tables in {out.out}"]
    show_answer(answer, out, inputs, more=more)
