"""The search for a fleet of servers, and a load on it; imports `base/`, `pricing/`, `program/`.

`serve.py` is `plan serve`; `words.py` makes its requests of words, `second_opinion.py` simulates
each fleet with its steps as compiled. `simulate.py` is `simulate`: `load.py` makes requests of
words, `loaded.py` puts them on a saved plan, `replay.py` holds those of a benchmark against what
was measured, and `follow.py` says what servers that follow a load cost. Read `serve.py` first.
"""
