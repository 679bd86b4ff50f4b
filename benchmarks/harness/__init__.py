"""What all benchmarks share: records, the command line in three sizes, generated pages, the look of figures."""
