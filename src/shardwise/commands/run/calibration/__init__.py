"""Constants of a machine of one's own, fitted to measurements of it; nothing here is shipped.

`machine.py` fits a hardware file to microbenchmarks of the devices of this machine. For a server,
`endpoint.py` puts a short load on it, `replay.py` serves the recorded requests in the simulator and
moves the few numbers that are the server's own, and `server.py` goes from a plan and the records to
the two files. Read `machine.py` first, or `server.py`.
"""
