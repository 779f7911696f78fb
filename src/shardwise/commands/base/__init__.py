"""Code that every command needs; imports no other room.

`answer.py` has the Answer, `request.py` makes the Python function of a request, `inputs.py` turns
words (a chip's name, a slice's spelling, a batch) into values. Pages are put together of what
`layout.py` has: at most 30 lines of 100 columns. Read `answer.py` first.
"""
