"""Screens: parse a request, call a verb, render the answer. Nothing is computed here.

Start with `cli/`; each file there is one command. `server/` answers OpenAI's clients over HTTP.
`page/` is the page of `shardwise ui`, `web/` what the two share of HTTP.
"""
