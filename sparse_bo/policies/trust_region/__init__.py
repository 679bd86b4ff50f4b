"""Trust regions on a box: a local GP and log expected improvement, after TuRBO (Eriksson et al. 2019)."""
