"""Policies whose model is fitted to a subset of the observations: GSSBO and RSSBO, through BoTorch's acquisition functions."""
