"""The README of a model folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from simcse.model_description import ModelDescription

SEEDS = "seeds"
"""In a lineage: `count` of runs that differ in their seed alone, and `scores`, which gives by
measure the mean, deviation, minimum and maximum over them."""

_LICENCE = re.compile(r"^license:\s*(\S+)\s*$", re.MULTILINE)
_POOLED = {
    "cls": "the last layer's state of [CLS]",
    "cls_before_pooler": "the last layer's state of [CLS]",
    "avg": "the mean of the last layer's token states",
    "avg_top2": "the mean of the token states of the last two layers",
    "avg_first_last": "the mean of the token states of the first and the last layer",
}
_WHITENED = ", then whitened by an affine map fitted to the vectors of some text"
_HEAD = {
    "none": "",
    "training": ", without the dense layer that training put on it",
    "always": ", through a dense layer and tanh",
}


def read_licence(folder: Path) -> str:
    """The licence that the front matter of a model card names, else `unknown`."""
    card = folder / "README.md"
    parts = (
        card.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
        if card.is_file()
        else []
    )
    match = _LICENCE.search(parts[1]) if len(parts) == 3 and not parts[0] else None
    return match[1] if match else "unknown"


def model_card(description: ModelDescription, *, licence: str, pooler_output: bool) -> str:
    """Markdown with front matter: what the vectors are, how to get them, and their scores.

    `pooler_output` says that transformers' own pooler gives the vector.
    """
    by_hand = (
        "`AutoModel.from_pretrained(folder)(**tokens).pooler_output` is the vector."
        if pooler_output
        else "`AutoModel.from_pretrained(folder)` gives the token states. Pool them as said above; "
        "`pooler_output`, if the architecture has one, is something else."
    )
    return f"""---
license: {licence}
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, simcse]
---
# Sentence encoder trained by SimCSE

A sentence becomes {description.dimension} numbers: {_POOLED[description.pooling]}\
{_HEAD[description.head]}{_WHITENED if description.whitened else ""}. Compare them by cosine.

## Use

```python
from simcse.encoder import SentenceEncoder

vectors = SentenceEncoder.load(folder).encode(sentences)

from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer(folder).encode(sentences)
```

{by_hand}

## Scores

{_scores(description)}

## Training

{_training(description)}

## Limits

{_limits(description, licence)}
"""


def _scores(description: ModelDescription) -> str:
    """The scores, and beside them what other seeds of the same settings gave."""
    if not description.scores:
        return "None were recorded."
    seeds = _seeds(description)
    spreads = {} if seeds is None else seeds["scores"]
    assert isinstance(spreads, dict)
    heads = ["measure", "value"]
    if seeds is not None:
        heads.append(f"over {seeds['count']} seeds: mean ± deviation (minimum to maximum)")
    lines = [" | ".join(heads), " | ".join(["---"] * len(heads))]
    for name, value in description.scores.items():
        cells = [name, f"{value:.2f}"]
        if spread := spreads.get(name):
            cells.append(
                f"{spread['mean']:.2f} ± {spread['deviation']:.2f} "
                f"({spread['minimum']:.2f} to {spread['maximum']:.2f})"
            )
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _seeds(description: ModelDescription) -> dict[str, Any] | None:
    """What a sweep over seeds left in the lineage."""
    seeds = description.lineage.get(SEEDS)
    return seeds if isinstance(seeds, dict) else None


def _training(description: ModelDescription) -> str:
    """From what, on what and with what; the whole lineage behind a fold."""
    lineage, settings = description.lineage, _flat(description.lineage.get("run"))
    versions = _flat(lineage.get("versions"))
    facts = {
        "encoder": settings.get("encoder.model"),
        "corpus": settings.get("data.corpus"),
        "sha256 of the corpus": lineage.get("data_sha256"),
        "rows of a batch": settings.get("global_batch_size"),
        "learning rate": settings.get("optim.learning_rate"),
        "temperature": settings.get("objective.temperature"),
        "seed": settings.get("seed"),
        "step": lineage.get("step"),
        "MLflow run": lineage.get("mlflow_run_id"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    # A zero is on record like any other number.
    known = [
        f"| {name} | {_cell(fact)} |"
        for name, fact in facts.items()
        if fact is not None and fact != ""
    ]
    table = "\n".join(["| | |", "|---|---|", *known]) if known else "Nothing is on record."
    whole = json.dumps(lineage, indent=2, ensure_ascii=False)
    return f"""{table}

<details><summary>Lineage</summary>

```json
{whole}
```

</details>"""


def _limits(description: ModelDescription, licence: str) -> str:
    scored = "the sets above" if description.scores else "no set"
    seeds = _seeds(description)
    chosen = "with one seed" if seeds is None else f"as the best of {seeds['count']} seeds"
    return (
        f"- Trained on sentences of at most {description.max_length} tokens; longer ones are read "
        "as far as the model can.\n"
        "- It knows the language and the kind of text of its corpus, and of the encoder it began "
        f"from; elsewhere it was not measured. It was measured on {scored}, {chosen}.\n"
        "- Cosines order pairs; they are no probabilities, and what counts as near differs between "
        "models.\n"
        "- What the corpus says of people, the vectors repeat.\n"
        f"- Licence: {licence}. Those of the corpus and of the first encoder hold beside it."
    )


def _flat(tree: object, prefix: str = "") -> dict[str, object]:
    """Dotted path to value, as settings are written."""
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree} if prefix else {}
    flat: dict[str, object] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")
