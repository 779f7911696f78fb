"""Screens: parse a request, call a verb, render the answer. They compute nothing.

Start with `cli/`; each file there is one command. `server/` answers OpenAI's clients over HTTP.
`page/` is the page of `shardwise ui`, and `web/` is the HTTP code that both share.
"""
