"""Run by check_exports.py: SkyPilot's own schemas and its reader of services take every YAML."""

import json
import sys
from pathlib import Path


def main(source: str, target: str) -> None:
    """Every file of `source` by name: its error, where there is one."""
    import yaml
    from sky.serve.service_spec import SkyServiceSpec
    from sky.utils import common_utils, schemas

    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            document = yaml.safe_load(text)
            common_utils.validate_schema(document, schemas.get_task_schema(), "task: ")
            common_utils.validate_schema(
                document["resources"], schemas.get_resources_schema(), "resources: "
            )
            SkyServiceSpec.from_yaml_config(document["service"])
            found[key] = {}
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    keys = schemas.get_task_schema()["properties"]
    Path(target).write_text(json.dumps({"files": found, "flags": sorted(keys)}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
