"""One expression over a mesh: counted, priced, run; imports `base/`.

`command.py` is the request, `expression.py` resolves the text, `run.py` runs it on this machine,
`result.py` has the fields of the answer and `page.py` its page. Read `command.py` first.
"""
