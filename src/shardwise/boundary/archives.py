"""Read what gzip packed, without unpacking more than a limit: 2 MB may hold 2 GB."""

import zlib
from pathlib import Path

from shardwise.boundary.files import TABLE_BYTES, read_bytes
from shardwise.errors import BadRequest
from shardwise.units import format_bytes

MOST_MEMBERS = 200
"""Of one file; each costs a copy of what comes after it."""
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for gzip's header and trailer


def read_packed(path: Path, what: str, *, most: int = TABLE_BYTES, remedy: str = "") -> bytes:
    """The bytes of a file, unpacked where it ends with `.gz` or begins as gzip does.

    Raises BadRequest for what cannot be read, is damaged or cut off, or unpacks to over `most`.
    """
    return unpacked(read_bytes(path, what, most=most, remedy=remedy), path, what, most=most)


def unpacked(data: bytes, path: Path, what: str, *, most: int = TABLE_BYTES) -> bytes:
    """As `read_packed`, of the bytes that were read."""
    if path.suffix != ".gz" and not data.startswith(b"\x1f\x8b"):
        return data
    found, rest, members = bytearray(), data, 0
    try:
        while rest:  # a file may hold several members, one after the other
            members += 1
            if members > MOST_MEMBERS:
                raise BadRequest(
                    f"{what} '{path}' is of more than {MOST_MEMBERS} gzip files, one after the "
                    "other; unpack it and pack it as one"
                )
            unpacker = zlib.decompressobj(_GZIP)
            found += unpacker.decompress(rest, most + 1 - len(found))
            if len(found) > most:
                raise BadRequest(
                    f"{what} '{path}' unpacks to more than {format_bytes(most)}, the limit"
                )
            if not unpacker.eof:
                raise zlib.error("it is cut off")
            rest = unpacker.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise BadRequest(
            f"{what} '{path}' is not a whole gzip file: {error}; copy it again"
        ) from None
    if not data:
        raise BadRequest(f"{what} '{path}' is empty; copy it anew")
    return bytes(found)
