"""Run by check_exports.py in vLLM's environment: its own parsers take every server and every check
of a script, and that of its router what spreads requests."""

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

VERSION = "0.32.0"
_version = importlib.metadata.version
importlib.metadata.version = lambda name: f"{VERSION}+cpu" if name == "vllm" else _version(name)


def main(source: str, target: str) -> None:
    """Every file of `source`, what its cases call, by name: its error, where there is one."""
    server, client, router = parsers()
    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            for name, *words in json.loads(text).values():
                if name == "vllm-router":
                    router.parse_args(words)
                elif words[0] == "bench":
                    client.parse_args(words[2:])
                else:
                    server.parse_args(words[1:])
            found[key] = {}
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    flags = {flag for parser in (server, client, router) for flag in flags_of(parser)}
    Path(target).write_text(json.dumps({"files": found, "flags": sorted(flags)}))


def parsers() -> tuple[Any, Any, Any]:
    """Those of `vllm serve`, `vllm bench serve` and vllm-router."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm_router.router_args import RouterArgs

    client, router = FlexibleArgumentParser(), argparse.ArgumentParser()
    add_cli_args(client)
    RouterArgs.add_cli_args(router)
    return make_arg_parser(FlexibleArgumentParser()), client, router


def flags_of(parser: Any) -> list[str]:
    """The flags that a parser knows."""
    return [flag for action in parser._actions for flag in action.option_strings]


if __name__ == "__main__":
    main(*sys.argv[1:3])
