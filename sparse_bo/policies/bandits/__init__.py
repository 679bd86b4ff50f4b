"""Upper-confidence policies: BKB, BBKB, GP-UCB, GP-BUCB and mini-META, over arms and boxes."""
