#!/usr/bin/env python3
"""Count a model class of transformers: one line of tests/models/data/class_variants.jsonl.

    scripts/count_class.py CONFIG.json [KEY=VALUE ...]

Needs torch and transformers. The class that `architectures` names is built on torch's meta device,
which allocates nothing, from the config with keys changed to the given values (JSON). Printed is
the config with the changes, and the parameters of the class, a shared tensor once, without those
that nothing reads.
"""

import json
import sys
from pathlib import Path

import torch
import transformers


def counted(config, changes):
    """The line of one variant."""
    config = {**config, **changes}
    model = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        built = model(model.config_class(**config))
    return {"changes": changes, "params_total": total(built), "config": config}


def total(model):
    """Parameters of a class: a shared tensor once, without those that nothing reads.

    LongCat-Flash allocates gate and up projections for its experts that compute nothing, too.
    """
    unread = sum(
        module.gate_up_proj[module.num_routed_experts :].numel()
        for module in model.modules()
        if getattr(module, "zero_expert_num", 0)
    )
    return sum(tensor.numel() for tensor in model.parameters()) - unread


def main():
    file, *pairs = sys.argv[1:]
    changes = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    print(json.dumps(counted(json.loads(Path(file).read_text(encoding="utf-8")), changes)))


if __name__ == "__main__":
    main()
