"""Wikipedia sentences a second in unsupervised training, against sentence-transformers."""

from __future__ import annotations

from benchmarks.measuring import main
from benchmarks.minilm_training import compare_training, read_sentences

if __name__ == "__main__":
    main(
        compare_training(
            "sentences", "Wikipedia sentences", read_sentences, batch=64, fp32=1.1, bf16=1.8
        )
    )
