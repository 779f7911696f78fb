"""Verbs: one frozen request each, whose fields are its keywords, and a typed answer.

The command line and Python make the same request: `shardwise plan train --remat block` and
`shardwise.plan_train(..., remat="block")`. Its `answer()` joins the workflows, the evidence and the
book, and gives an Answer (`answer.py`) that prints as the command does, has rows, and says what the
command's document holds. `request.py` makes the Python function of a request. Each other file is a
command of the same name, or a page that several show (`train_page.py`). No option of where output
goes is known here. Read `answer.py`, then `plan_train.py`.
"""
