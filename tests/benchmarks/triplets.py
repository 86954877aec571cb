"""NLI triplets a second in supervised training, against sentence-transformers."""

from __future__ import annotations

from benchmarks.measuring import main
from benchmarks.minilm_training import compare_training, read_triplets

if __name__ == "__main__":
    main(compare_training("triplets", "NLI triplets", read_triplets, batch=128, fp32=1.8, bf16=3.0))
