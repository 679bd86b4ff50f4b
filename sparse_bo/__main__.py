"""``python -m sparse_bo``."""

import sys

try:
    from sparse_bo.cli.options import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    main()
