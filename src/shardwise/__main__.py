"""`python -m shardwise` is the command `shardwise`."""

from shardwise.apps.cli import main

if __name__ == "__main__":
    main()
