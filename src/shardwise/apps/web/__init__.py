"""What the server and the page share of HTTP: who may ask, and what a connection may cost.

`hosts.py` says which names a server answers to and which pages of a browser may ask it.
`connection.py` bounds a connection: its header in bytes, its silence in seconds, their number.
`pace.py` bounds the time that all refusals together may take.
`attended.py` ends work whose client has gone. Nothing of a model or a plan is here. Read
`connection.py` first.
"""
