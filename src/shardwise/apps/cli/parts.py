"""Packages that some commands need and that the plain install leaves out."""

from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.errors import MissingPart

_OPTIONAL = {
    "run": ("jax", "jaxlib", "optax", "ml_dtypes", "scipy"),
    "serve": ("starlette", "uvicorn", "prometheus_client", "jinja2"),
}


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Around imports: MissingPart with the install command where one of the packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        part = next((part for part, names in _OPTIONAL.items() if name in names), "")
        if not part:
            raise
        raise MissingPart(f"{what} needs {name}: pip install '.[{part}]'") from None
