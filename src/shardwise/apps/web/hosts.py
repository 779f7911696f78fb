"""Which names a server answers to, and which pages of a browser may ask it.

A page of any site may lead a browser here: by a name of its own that it points at this address
(`Host` then has that name), or by a request that needs no answer (`Origin` and `Sec-Fetch-Site`
then say where from). Neither may read or use a server that asks for no key.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from socket import gethostname
from urllib.parse import urlsplit

from shardwise.errors import BadRequest, shown

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses to listen on that other machines do not reach."""
EVERY = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?", re.ASCII)
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """Names that a server answers to beside those of this machine alone (localhost, 127.0.0.0/8,
    [::1]); with `addresses` any address, which no other site can point elsewhere; or `every` name,
    where a key is asked for. Ports do not matter."""

    names: tuple[str, ...] = ()
    addresses: bool = False
    every: bool = False

    def admits(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = _name_of(host)
        if self.every or name in (*self.names, "localhost"):
            return True
        try:
            address = ip_address(name.strip("[]"))
        except ValueError:
            return False
        return self.addresses or address.is_loopback

    def refused(self, hosts: Iterable[str]) -> str | None:
        """Why a request with these Host headers is not answered."""
        for host in hosts:
            if not self.admits(host):
                return (
                    f"this server does not answer for the host {shown(host)}; ask it by its "
                    "address, or start it with --allowed-host NAME"
                )
        return None

    def foreign(self, headers: Mapping[str, str]) -> str | None:
        """Why a request that a browser makes for a page of another site is not answered."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if self.every:
            return None
        if origin is not None:
            if _place_of(origin) == headers.get("host", "").lower() or self._named(origin):
                return None
            return f"a page of {shown(origin)} may not ask this server; ask from its own page"
        if site in (None, "same-origin", "none"):
            return None
        return f"a page of another site ({shown(site)}) may not ask this server; ask it yourself"

    def _named(self, origin: str) -> bool:
        return _name_of(_place_of(origin)) in self.names


def _place_of(origin: str) -> str:
    """Host and port of an origin; empty where it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """A Host header without its port, in lower case; empty where it is none."""
    match = _HOST.fullmatch(host.strip().lower())
    return match[1].removesuffix(".") if match else ""


def host_rule(bound: str, allowed: Iterable[str], *, keyed: bool) -> HostRule:
    """The rule of a server that listens on `bound`. Beyond this machine every address will do, the
    machine's name, and what `allowed` names; any name where nothing is named and a key is asked
    for, as no page of a browser has it. Raises BadRequest for what is not a host's name."""
    names = tuple(name.lower() for name in allowed)
    for name in names:
        if name != EVERY and not _NAME.fullmatch(name):
            raise BadRequest(
                f"--allowed-host {shown(name)} is not a host name; give one without scheme and "
                "port, such as api.example.com, or '*' for every name"
            )
    outside = bound not in LOOPBACK
    every = EVERY in names or (outside and keyed and not names)
    own = (gethostname().lower(), bound.lower())
    return HostRule(names=names + own * outside, addresses=outside, every=every)
