"""`python -m roller`: the command `roller` where no script of that name is on the path."""

from roller.cli import main

if __name__ == "__main__":
    main()
