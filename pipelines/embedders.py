"""What can be scored and searched with: encoders, word vectors, and systems from elsewhere."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from simcse.errors import ModelError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from simcse.config import Pooling
    from simcse.encoder import SentenceEncoder
    from simcse.evaluation import Embedder
    from simcse.evaluation.protocol import Progress


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a command scores."""

    embedder: Embedder
    name: str
    """MODEL or `--embedder` as the user wrote it."""
    pooling: str | None
    """Null for what is no encoder of ours."""


def choose(
    model: str | None,
    embedder: str | None,
    *,
    pooling: Pooling | None,
    output: Path,
    tracking: str | None,
) -> Chosen:
    """What either MODEL or `--embedder` names; MODEL may be a file of word vectors as well."""
    from simcse.word_vectors import FILE_NAMES, WordVectorAverage

    if (model is None) == (embedder is None):
        raise UsageError("name what is scored: either MODEL or --embedder MODULE:ATTRIBUTE")
    if model is not None and not model.endswith(FILE_NAMES):
        encoder = load_model(model, pooling=pooling, output=output, tracking=tracking)
        return Chosen(encoder, model, encoder.pooling)
    if pooling is not None:
        raise UsageError(f"--pooling {pooling} is for encoders: leave it out")
    if embedder is not None:
        return Chosen(import_embedder(embedder), embedder, None)
    assert model is not None
    return Chosen(WordVectorAverage.load(model), model, None)


def load_model(
    model: str, *, pooling: Pooling | None = None, output: Path, tracking: str | None
) -> SentenceEncoder:
    """The encoder in a folder, on the hub or in the registry, on a GPU if there is one."""
    folder: str | Path = model
    if model.startswith("models:/"):
        from simcse_platform.tracking.location import tracking_uri
        from simcse_platform.tracking.registry import fetch_model

        folder = fetch_model(tracking_uri(tracking, output), model, output / ".models")
    return load_folder(folder, pooling=pooling)


def load_folder(folder: str | Path, *, pooling: Pooling | None = None) -> SentenceEncoder:
    """The encoder in a folder or on the hub, on a GPU if there is one."""
    import torch

    from simcse.encoder import SentenceEncoder

    encoder = SentenceEncoder.load(folder, pooling=pooling)
    return encoder.to("cuda") if torch.cuda.is_available() else encoder


def import_embedder(reference: str) -> Embedder:
    """The object `module:attribute`, or what it gives when it is a class or function.

    A class or function is called without arguments; either way there must be a method
    `encode(list of sentences)` in the end. The current folder is searched first. Raises
    `UsageError` when there is none, and from `encode` `ModelError` for anything but one row of
    floats a sentence.
    """
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"--embedder {reference} is not of the form MODULE:ATTRIBUTE")
    # What `encode` imports later is found there too.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    # A foreign module may raise anything, and may even want to end the program.
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"--embedder {reference}: the module {module_name} cannot be imported "
            f"({type(error).__name__}: {error}): it must be in the current folder or installed"
        ) from error
    if not hasattr(module, attribute):
        raise UsageError(f"--embedder {reference}: {module_name} has no {attribute}: check it")
    found: Any = getattr(module, attribute)
    if isinstance(found, type) or (callable(found) and not hasattr(found, "encode")):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise UsageError(
                f"--embedder {reference} cannot be called without arguments ({error}): name a "
                "function that needs none, or an object that is made already"
            ) from None
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"--embedder {reference} failed ({type(error).__name__}: {error}): mend it"
            ) from error
    if not callable(getattr(found, "encode", None)):
        raise UsageError(
            f"--embedder {reference} is of type {type(found).__name__}, which has no method "
            "encode: give it encode(sentences), which returns one row of floats a sentence"
        )
    return _Foreign(reference, found)


class _Encodes(Protocol):
    def encode(self, sentences: list[str], /) -> Any: ...


class _Foreign:
    """An object from elsewhere as an `Embedder`; its result is checked, it is called once."""

    def __init__(self, reference: str, theirs: _Encodes) -> None:
        self._reference, self._theirs = reference, theirs

    def encode(
        self, sentences: Sequence[str], *, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        import numpy as np

        try:
            vectors_nD = np.asarray(self._theirs.encode(list(sentences)))
        # Foreign code may raise anything, a tensor that needs a gradient for one.
        except (Exception, SystemExit) as error:
            raise self._wrong(f"no array ({type(error).__name__}: {error})") from error
        if vectors_nD.ndim != 2 or vectors_nD.dtype.kind != "f" or not vectors_nD.shape[1]:
            raise self._wrong(
                f"an array of {vectors_nD.dtype} of shape {vectors_nD.shape}, not one of floats "
                "with a row a sentence"
            )
        if len(vectors_nD) != len(sentences):
            raise self._wrong(f"{len(vectors_nD)} rows for {len(sentences)} sentences")
        if progress:
            progress(len(sentences))
        return vectors_nD.astype(np.float32, copy=False)

    def _wrong(self, what: str) -> ModelError:
        return ModelError(
            f"encode of --embedder {self._reference} returned {what}: return one row of floats a "
            "sentence, in their order"
        )
