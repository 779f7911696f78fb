"""Commands: one frozen request each, whose fields are its keywords, and a typed answer.

The command line and Python make the same request: `shardwise plan train --remat block` and
`shardwise.plan_train(..., remat="block")`. Its `answer()` asks the planner, the runtime and the
profiler, sets evidence and the book beside, and prints as the command does. Each room may import
only the rooms before it: `base/` has what every command needs, `pricing/` prices one plan and shows
it, `program/` compiles plans and reads programs, `shard/` counts one expression, `plan_train/` and
`plan_serve/` search, `plan_file/` shows, compares and exports saved plans, `run/` trains, serves
and measures, `tables/` has what is looked up. Where output goes is no business of this folder.
Read `base/answer.py`, then `plan_train/train.py`.
"""
