"""The programs beside `programs.py` are compiled by `scripts/explain_corpus.py` alone."""

collect_ignore = ["apart.py", "attention.py", "exchanges.py", "serving.py", "training.py"]
collect_ignore += ["wholes.py"]
