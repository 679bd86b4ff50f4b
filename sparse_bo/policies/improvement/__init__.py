"""Expected improvement over arms, alone and as the first stage of an upper-confidence policy."""
