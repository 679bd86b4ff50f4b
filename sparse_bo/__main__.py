"""``python -m sparse_bo``."""

from sparse_bo.cli.app import main

if __name__ == "__main__":
    main()
