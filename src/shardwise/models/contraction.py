"""FLOPs of one contraction of two arrays, forward and backward (ch. 4.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from shardwise.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A product of two arrays, one letter per dim: A[N, P] B[P, M] -> C[N, M] is NP, PM -> NM.

    A dim of both operands is batching where the result keeps it and contracting where it does not;
    a dim of one operand must be in the result.
    """

    left: str
    right: str
    out: str

    @classmethod
    def parse(cls, text: str) -> "Contraction":
        """Read `NP,PM->NM`; raises BadRequest for anything else.

        >>> Contraction.parse("NP,PM->NM").contracting
        'P'
        """
        operands, arrow, out = text.replace(" ", "").partition("->")
        left, comma, right = operands.partition(",")
        if not arrow or not comma or not (left + right + out).isalpha():
            raise BadRequest(f"contraction '{text}' must name two operands, such as NP,PM->NM")
        for part in (left, right, out):
            twice = next((d for d in part if part.count(d) > 1), "")
            if twice:
                raise BadRequest(
                    f"contraction '{text}' uses dim '{twice}' twice in '{part}'; "
                    "an array has each dim once, so rename one of them"
                )
        lost = (set(left) ^ set(right)) - set(out)
        new = set(out) - set(left) - set(right)
        if lost or new:
            dim = min(lost | new)
            rule = "is in one operand only; keep it in the result"
            raise BadRequest(
                f"contraction '{text}': dim '{dim}' "
                + (rule if lost else "is in the result but in no operand; remove it")
            )
        return cls(left=left, right=right, out=out)

    @property
    def contracting(self) -> str:
        """Dims summed over."""
        return "".join(d for d in self.left if d in self.right and d not in self.out)

    @property
    def batching(self) -> str:
        """Dims of both operands that the result keeps."""
        return "".join(d for d in self.left if d in self.right and d in self.out)

    @property
    def gradients(self) -> tuple["Contraction", "Contraction"]:
        """The two backward products: dA from dC and B, dB from A and dC (ch. 4.1.1)."""
        d_left = Contraction(left=self.out, right=self.right, out=self.left)
        return d_left, Contraction(left=self.left, right=self.out, out=self.right)

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Twice the product of all dims, each counted once; once where nothing is summed.

        >>> Contraction.parse("NP,PM->NM").flops({"N": 10, "P": 1000, "M": 7})
        140000
        """
        dims = dict.fromkeys(self.left + self.right)
        missing = [d for d in dims if d not in sizes]
        if missing:
            raise BadRequest(
                f"no size for dim '{missing[0]}' of {self.left},{self.right}->{self.out}; "
                f"give one for each of {', '.join(dims)}"
            )
        return (2 if self.contracting else 1) * prod(sizes[d] for d in dims)

    def training_flops(self, sizes: Mapping[str, int]) -> int:
        """Forward and both backward products: three times forward for a matmul."""
        return self.flops(sizes) + sum(g.flops(sizes) for g in self.gradients)
