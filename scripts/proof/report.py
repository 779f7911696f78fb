"""The proof as a page: what was drawn, what came of it, and every case that failed."""

from collections import Counter
from collections.abc import Sequence

from proof.check import ProofVerdict, compare

CHOICES = (
    ("equal", "costs the same"),
    ("dearer", "costs more"),
    ("cheaper", "costs less"),
    ("unsaid", "cannot be asked for: the result stays unreduced"),
)
SHOWN = 5


def report(verdicts: Sequence[ProofVerdict], *, made: str) -> str:
    """Markdown; `made` says when and with which compiler."""
    failed = [v for v in verdicts if v.problem]
    predicted = sum(v.as_predicted for v in verdicts)
    return "\n".join(
        [
            "# The resolver against a real compiler",
            "",
            f"Written by `scripts/prove`, {made}. {len(verdicts)} random einsums by seed:",
            "products, chains and reshards, on 1 to 3 mesh axes and up to 8 virtual CPU devices.",
            "",
            "| check | cases |",
            "|---|---:|",
            f"| result equals the dense product | {_passed(verdicts, 'result')} |",
            f"| gradient equals the dense gradient | {_passed(verdicts, 'gradient')} |",
            f"| compiled collectives are the predicted ones, to the byte | {predicted} |",
            f"| failed in any way | {len(failed)} |",
            "",
            *_choices(verdicts),
            "",
            *_largest(verdicts),
            *_failures(failed),
        ]
    )


def _passed(verdicts: Sequence[ProofVerdict], what: str) -> int:
    return sum(f"the {what} differs" not in v.problem for v in verdicts)


def _choices(verdicts: Sequence[ProofVerdict]) -> list[str]:
    counts = Counter(v.choice for v in verdicts)
    compiled = Counter(
        v.choice if v.choice == "unsaid" else compare(v.ours, v.as_compiled) for v in verdicts
    )
    explained = sum(v.choice == "cheaper" and bool(v.rule) for v in verdicts)
    return [
        "## Against XLA's own choice",
        "",
        "Plain `jit` with the same input and output shardings, priced by our own rules on a slice",
        "of v5e, v5p or H100: collectives and local products, one after the other. First as TPUs",
        "and GPUs would have it, an all-reduce that is only sliced being a reduce-scatter; then as",
        "compiled for CPUs, where it stays an all-reduce.",
        "",
        "| XLA's choice | cases | as compiled for CPUs |",
        "|---|---:|---:|",
        *(f"| {text} | {counts[name]} | {compiled[name]} |" for name, text in CHOICES),
        "",
        f"{explained} of the cheaper ones are explained by a rule of `scripts/proof/rules.py`:",
        "given what XLA used, the resolver is as cheap.",
        "",
        *(
            f"- seed {v.seed}, `{v.einsum}` on {v.mesh}: {v.rule}; XLA: {v.xla_collectives}"
            for v in verdicts
            if v.rule
        ),
    ]


def _largest(verdicts: Sequence[ProofVerdict]) -> list[str]:
    dear = sorted(verdicts, key=lambda v: v.ours / v.xla if v.xla else 1.0)
    rows = [
        f"| {v.seed} | `{v.einsum}` on {v.mesh} | {v.xla / v.ours:.2f} | "
        f"{v.our_collectives or '-'} | {v.xla_collectives or '-'} |"
        for v in dear
        if v.ours and v.choice != "unsaid"
    ]
    return [
        "Where XLA's choice costs most over ours:",
        "",
        "| seed | einsum | times ours | ours | XLA's |",
        "|---:|---|---:|---|---|",
        *rows[:SHOWN],
        "",
    ]


def _failures(failed: Sequence[ProofVerdict]) -> list[str]:
    if not failed:
        return []
    rows = [
        f"- seed {v.seed}: `{v.einsum}` on {v.mesh}, {v.slice_text}: {v.problem}" for v in failed
    ]
    return ["## Failures", "", *rows, ""]
