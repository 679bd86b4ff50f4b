"""Data files shipped with the package; see README.md for their origin."""
