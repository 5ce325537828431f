"""`python -m service.command`: the same as `precedent`."""

import sys

from service.command.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
