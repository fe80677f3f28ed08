"""`python -m roller`: the command `roller` for an environment without that script on the path."""

from roller.cli import main

if __name__ == "__main__":
    main()
