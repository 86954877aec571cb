"""Tiny encoders of every architecture that is promised, made in code, each as its makers save it.

BERT, DistilBERT and ALBERT get the WordPiece tokenizer of `tiny`; the others a byte-level BPE with
RoBERTa's special tokens, whose padding has id 1 and moves the first position.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from simcse.backbone import quiet_transformers
from support.tiny import WORDS, tiny_tokenizer

ARCHITECTURES = ("bert", "roberta", "distilbert", "albert", "mpnet", "xlm-roberta", "modernbert")
WITH_DENSE_POOLER = ("bert", "roberta", "mpnet", "xlm-roberta")
"""Those whose own pooler is `pooler.dense`; ALBERT's is a single matrix of another name."""

_POSITIONS = 64
_BPE_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def save_encoder(folder: Path, architecture: str, *, seed: int = 0) -> Path:
    """A folder with a 3-layer, 32-wide encoder, its pooler where it has one, and its tokenizer."""
    return _save(folder, architecture, AutoModel, seed)


def save_masked_language_model(folder: Path, architecture: str, *, seed: int = 0) -> Path:
    """The like with the head that predicts hidden tokens, and without a pooler."""
    return _save(folder, architecture, AutoModelForMaskedLM, seed)


def _save(
    folder: Path,
    architecture: str,
    auto_class: type[AutoModel | AutoModelForMaskedLM],
    seed: int,
) -> Path:
    wordpiece = architecture in ("bert", "distilbert", "albert")
    tokenizer = tiny_tokenizer() if wordpiece else bpe_tokenizer()
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        model = auto_class.from_config(_config(architecture, tokenizer))
        # As training leaves them: no bias is zero.
        for parameter in model.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bpe_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE that knows every text; `<pad>` has id 1, as in RoBERTa."""
    backend = Tokenizer(BPE(unk_token="<unk>"))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=True)
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=600,
        special_tokens=list(_BPE_SPECIAL),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(WORDS.splitlines(), trainer)
    backend.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=_POSITIONS,
        model_input_names=["input_ids", "attention_mask"],
    )


def _config(architecture: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    common = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    plain = common | {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        # Large enough that sentences differ by more than float noise.
        "initializer_range": 0.2,
        "max_position_embeddings": _POSITIONS,
    }
    # Two positions are never used: the first token's stands behind the padding id, which is 1.
    shifted = plain | {"max_position_embeddings": _POSITIONS + 2}
    match architecture:
        case "bert":
            return BertConfig(**plain)
        case "albert":
            return AlbertConfig(**plain, embedding_size=16)
        case "distilbert":
            return DistilBertConfig(
                **common,
                dim=32,
                n_layers=3,
                n_heads=2,
                hidden_dim=48,
                max_position_embeddings=_POSITIONS,
                initializer_range=0.2,
            )
        case "roberta":
            return RobertaConfig(**shifted, type_vocab_size=1)
        case "xlm-roberta":
            return XLMRobertaConfig(**shifted, type_vocab_size=1)
        case "mpnet":
            return MPNetConfig(**shifted)
        case "modernbert":
            return ModernBertConfig(
                **plain,
                global_attn_every_n_layers=3,
                local_attention=8,
                bos_token_id=0,
                cls_token_id=0,
                eos_token_id=2,
                sep_token_id=2,
            )
        case _:
            raise ValueError(f"no architecture {architecture!r}")
