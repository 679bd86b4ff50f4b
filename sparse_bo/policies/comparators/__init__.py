"""Policies that the papers compare with: random search, Thompson sampling, REMBO, HeSBO, mini-META, GP-UCB by BoTorch."""
