"""Packages that some commands need and that the plain install leaves out."""

from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.errors import MissingPart

_OPTIONAL = ("jax", "jaxlib", "optax", "ml_dtypes", "scipy")


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Around imports: MissingPart with the install command where one of the packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _OPTIONAL:
            raise
        raise MissingPart(f"{what} needs {name}: pip install '.[run]'") from None
