"""Run by check_exports.py in SGLang's environment: its own parser takes every server of a script,
and that of its router what spreads requests. The check is vLLM's, whose own record has it."""

import argparse
import json
import sys
from pathlib import Path


def main(source: str, target: str) -> None:
    """Every file of `source`, what its cases call, by name: its error, where there is one."""
    from sglang.srt.server_args import ServerArgs
    from sglang_router.router_args import RouterArgs

    server, router = argparse.ArgumentParser(), argparse.ArgumentParser()
    ServerArgs.add_cli_args(server)
    RouterArgs.add_cli_args(router)
    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            for words in json.loads(text).values():
                if "sglang_router.launch_router" in words:
                    router.parse_args(words[3:])
                elif "sglang.launch_server" in words:
                    server.parse_args(words[3:])
            found[key] = {}
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    flags = {f for p in (server, router) for a in p._actions for f in a.option_strings}
    Path(target).write_text(json.dumps({"files": found, "flags": sorted(flags)}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
