"""HTTP code of the server and the page: access control, and limits of a connection.

`hosts.py` says which names a server answers to and which pages of a browser may ask it.
`connection.py` bounds a connection: its header in bytes, its silence in seconds, their number.
`pace.py` bounds the time that all refusals together may take.
`attended.py` ends work whose client has gone. Nothing of a model or a plan is here. Read
`connection.py` first.
"""
