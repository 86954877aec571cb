"""SimCSE (Gao, Yao and Chen 2021, arXiv 2104.08821): the algorithm and its evaluation."""
