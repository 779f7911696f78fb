"""Commands: one frozen request each, whose fields are its keywords, and a typed answer.

The command line and Python make the same request: `shardwise plan train --remat block` and
`shardwise.plan_train(..., remat="block")`. Its `answer()` calls the planner, the runtime and the
profiler, adds evidence and the book, and prints as the command does. Each room may import
only the rooms before it: `base/` has what every command needs, `pricing/` prices one plan and shows
it, `program/` compiles plans and reads programs, `shard/` counts one expression, `plan_train/` and
`plan_serve/` search, `plan_file/` shows, compares and exports saved plans, `run/` trains, serves
and measures, `tables/` has what is looked up. This folder does not decide where output goes.
Read `base/answer.py`, then `plan_train/train.py`.
"""
