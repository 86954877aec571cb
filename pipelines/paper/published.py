"""Scores that Gao, Yao and Chen (2021) published in their large tables, x 100.

STS scores are Spearman's correlation in the `all` setting unless a label says otherwise; transfer
scores are accuracies. "base" is BERT-base or RoBERTa-base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcse.evaluation import STS_SUITE, TRANSFER_SUITE

AVERAGE = "Avg."

_TABLE_5 = """
GloVe embeddings (avg.)                 55.14 70.66 59.73 68.25 63.66 58.02 53.76 61.32
BERT-base (first-last avg.)             39.70 59.38 49.67 66.03 66.19 53.87 62.06 56.70
BERT-base-flow                          58.40 67.10 60.85 75.16 71.22 68.66 64.47 66.55
BERT-base-whitening                     57.83 66.90 60.90 75.08 71.31 68.24 63.73 66.28
IS-BERT-base                            56.77 69.24 61.21 75.23 70.16 69.21 64.25 66.58
CT-BERT-base                            61.63 76.80 68.47 77.50 76.48 74.31 69.19 72.05
SimCSE-BERT-base, unsupervised          68.40 82.41 74.38 80.91 78.56 76.85 72.23 76.25
RoBERTa-base (first-last avg.)          40.88 58.74 49.07 65.63 61.48 58.55 61.63 56.57
RoBERTa-base-whitening                  46.99 63.24 57.23 71.36 68.99 61.36 62.91 61.73
DeCLUTR-RoBERTa-base                    52.41 75.19 65.52 77.12 78.63 72.41 68.62 69.99
SimCSE-RoBERTa-base, unsupervised       70.16 81.77 73.24 81.36 80.65 80.22 68.56 76.57
SimCSE-RoBERTa-large, unsupervised      72.86 83.99 75.62 84.77 81.80 81.98 71.26 78.90
InferSent-GloVe                         52.86 66.75 62.15 72.77 66.87 68.03 65.65 65.01
Universal Sentence Encoder              64.49 67.80 64.61 76.83 73.18 74.92 76.69 71.22
SBERT-base                              70.97 76.53 73.19 79.09 74.30 77.03 72.91 74.89
SBERT-base-flow                         69.78 77.27 74.35 82.01 77.46 79.12 76.21 76.60
SBERT-base-whitening                    69.65 77.57 74.66 82.27 78.39 79.52 76.91 77.00
CT-SBERT-base                           74.84 83.20 78.07 83.84 77.93 81.46 76.42 79.39
SimCSE-BERT-base, supervised            75.30 84.67 80.19 85.40 80.82 84.25 80.39 81.57
SRoBERTa-base                           71.54 72.49 70.80 78.74 73.69 77.77 74.46 74.21
SRoBERTa-base-whitening                 70.46 77.07 74.46 81.64 76.43 79.49 76.65 76.60
SimCSE-RoBERTa-base, supervised         76.53 85.21 80.95 86.03 82.57 85.83 80.50 82.52
SimCSE-RoBERTa-large, supervised        77.46 87.27 82.36 86.66 83.93 86.70 81.95 83.76
"""
_TABLE_B = """
SBERT-base, all                         70.97 76.53 73.19 79.09 74.30 76.98 72.91 74.85
SBERT-base, wmean                       66.35 73.76 73.88 77.33 73.62 76.98 72.91 73.55
BERT-base-whitening, all                57.83 66.90 60.89 75.08 71.30 68.23 63.73 66.28
BERT-base-whitening, wmean              61.43 65.90 65.96 74.80 73.10 68.23 63.73 67.59
BERT-base (first-last avg.), wmean      57.86 61.97 62.49 70.96 69.76 59.04 63.75 63.69
BERT-base-flow, wmean                   59.54 64.69 64.66 72.92 71.84 58.56 65.44 65.38
SimCSE-BERT-base, unsupervised, wmean   70.14 79.56 75.91 81.46 79.07 76.85 72.23 76.46
SBERT-base (first-last avg.), wmean     68.70 74.37 74.73 79.65 75.21 77.63 74.84 75.02
SBERT-base-flow, wmean                  67.75 76.73 75.53 80.63 77.58 79.10 78.03 76.48
SBERT-base-whitening, wmean             69.11 75.79 75.76 82.31 79.61 78.66 76.33 76.80
SimCSE-BERT-base, supervised, wmean     70.90 81.49 80.19 83.79 81.89 84.25 80.39 80.41
"""
_TABLE_E1 = """
GloVe embeddings (avg.)                 77.25 78.30 91.17 87.85 80.18 83.00 72.87 81.52
Skip-thought                            76.50 80.10 93.60 87.10 82.00 92.20 73.00 83.50
BERT-base (avg.)                        78.66 86.25 94.37 88.66 84.40 92.80 69.54 84.94
BERT-base ([CLS])                       78.68 84.85 94.21 88.23 84.13 91.40 71.13 84.66
IS-BERT-base                            81.09 87.18 94.96 88.75 85.96 88.64 74.24 85.83
SimCSE-BERT-base, unsupervised          81.18 86.46 94.45 88.88 85.50 89.80 74.43 85.81
SimCSE-BERT-base, unsupervised, MLM     82.92 87.23 95.71 88.73 86.81 87.01 78.07 86.64
SimCSE-RoBERTa-base, unsupervised       81.04 87.74 93.28 86.94 86.60 84.60 73.68 84.84
SimCSE-RoBERTa-base, unsupervised, MLM  83.37 87.76 95.05 87.16 89.02 90.80 75.13 86.90
SimCSE-RoBERTa-large, unsupervised      82.74 87.87 93.66 88.22 88.58 92.00 69.68 86.11
SimCSE-RoBERTa-large, unsupervised, MLM 84.66 88.56 95.43 87.50 89.46 95.00 72.41 87.57
InferSent-GloVe                         81.57 86.54 92.50 90.38 84.18 88.20 75.77 85.59
Universal Sentence Encoder              80.09 85.19 93.98 86.70 86.38 93.20 70.14 85.10
SBERT-base                              83.64 89.43 94.39 89.86 88.96 89.60 76.00 87.41
SimCSE-BERT-base, supervised            82.69 89.25 94.81 89.59 87.31 88.40 73.51 86.51
SimCSE-BERT-base, supervised, MLM       82.68 88.88 94.52 89.82 88.41 87.60 76.12 86.86
SRoBERTa-base                           84.91 90.83 92.56 88.75 90.50 88.60 78.14 87.76
SimCSE-RoBERTa-base, supervised         84.92 92.00 94.11 89.82 91.27 88.80 75.65 88.08
SimCSE-RoBERTa-base, supervised, MLM    85.08 91.76 94.02 89.72 92.31 91.20 76.52 88.66
SimCSE-RoBERTa-large, supervised        88.12 92.37 95.11 90.49 92.75 91.80 76.64 89.61
SimCSE-RoBERTa-large, supervised, MLM   88.45 92.53 95.19 90.58 93.30 93.80 77.74 90.23
"""


def _read(table: str, columns: Sequence[str]) -> dict[str, dict[str, float]]:
    rows = {}
    for line in table.strip().splitlines():
        label, *numbers = line.rsplit(maxsplit=len(columns))
        rows[label] = dict(zip(columns, map(float, numbers), strict=True))
    return rows


PUBLISHED_STS: Mapping[str, Mapping[str, float]] = _read(_TABLE_5, (*STS_SUITE, AVERAGE))
"""Table 5: test scores by system, then by set."""
PUBLISHED_AGGREGATIONS: Mapping[str, Mapping[str, float]] = _read(_TABLE_B, (*STS_SUITE, AVERAGE))
"""Tables B.2 and B.3, which is all in wmean: test scores by system and aggregation.

Flow and whitening are fitted to NLI sentences; the rows that fit them to a test set itself
("target") are left out, and those that repeat for comparison what others reported of SBERT (the one
of table 5) and of BERT-base-whitening (wmean 67.63)."""
PUBLISHED_TRANSFER: Mapping[str, Mapping[str, float]] = _read(_TABLE_E1, (*TRANSFER_SUITE, AVERAGE))
"""Table E.1: test accuracies by system, then by task."""
