"""Elimination policies, S-BPE and BPE, and regression designs."""
