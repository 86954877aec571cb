"""A tiny BERT and its WordPiece tokenizer, made in code, for tests that need no meaning."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = """
the a an of in on at to for with and or not is are was were be has had it he she they we you
man woman child dog cat bird horse car bus road house city river sea sun rain food water book
music game team play plays playing eat eats eating run runs running sit sits sitting ride rides
riding sleep read write big small old new red green blue black white good bad one two three first
last year day time people world
"""
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def vocabulary() -> dict[str, int]:
    """Special tokens, words, then every letter, digit and mark, alone and as a continuation."""
    characters = string.ascii_lowercase + string.digits
    pieces = [
        *SPECIAL,
        *WORDS.split(),
        *characters,
        *(f"##{c}" for c in characters),
        *string.punctuation,
    ]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer that knows every ASCII text."""
    vocab = vocabulary()
    backend = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = BertNormalizer(lowercase=True)
    backend.pre_tokenizer = BertPreTokenizer()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )


def save_tiny_encoder(folder: Path, *, seed: int = 0, **sizes: int) -> Path:
    """A plain Hugging Face folder: 2 layers, 32 wide, 64 positions, with a pooler.

    `sizes` are fields of `BertConfig` that shall be others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(
            BertConfig(
                vocab_size=len(vocabulary()),
                max_position_embeddings=64,
                # Large enough that sentences differ by more than float noise.
                initializer_range=0.2,
                **(_SIZES | sizes),
            )
        )
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
