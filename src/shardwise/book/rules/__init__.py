"""The book's closed rules: thresholds, degrees and audits beside the plans that the search finds.

`training.py` holds the rules for tori (ch. 4 to 6) and for whole runs, `mlp.py` the times of the
book's MLP block, `gpu.py` the rules behind switches (ch. 12), `serving.py` those of serving (ch. 7
and 8), `collectives.py` those of rings and lines and `shards.py` sharded arrays in numbers (ch. 3),
`transformer.py` the model by its letters (ch. 4), `chips.py` what is read off chips and fleets,
`lanes.py` warps and vector lanes (ch. 12 and 2), `tori.py` distances on tori, `laws.py` scaling
laws and the deck's exercises, `blocks.py` small programs run block by block, `sums.py` the
arithmetic between rules, `audit.py` holds a plan against them.
No work is counted here op by op: that is `planner.step.work`. Read `training.py` first.
"""
