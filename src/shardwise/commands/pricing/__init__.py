"""Price one plan and show it; imports `base/`.

`plans.py` reads a saved plan and prices it, `lacking.py` says with which options another program's
file is read that leaves something out. `predict.py` makes a training plan of words and chips
(`train_choices.py` is what its search may not choose); it is here and not in `plan_train/` because
the pages and `plan sweep` share its sentences. One priced plan as a page is in `train_page.py` and
`serve_page.py`, servers under a load in `served_page.py`, a whole run, its words and its days and
dollars, in `whole_run.py`. Read `plans.py` first.
"""
