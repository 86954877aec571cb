"""The model code MLflow runs when it loads one of our models: safetensors in, no pickle.

MLflow copies this file into the model and executes it there, so it imports `simcse` (copied
beside it) and nothing else of this project. n: sentences, D: numbers in one vector.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from numpy.typing import NDArray

from simcse.encoder import SentenceEncoder


class EncoderModel(PythonModel):
    """A sentence encoder behind MLflow's `predict`."""

    def load_context(self, context: PythonModelContext) -> None:
        self._encoder = SentenceEncoder.load(Path(context.artifacts["encoder"]))

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> NDArray[np.float32]:
        """Vectors `[n, D]` of a frame's one column; MLflow makes such a frame of a list."""
        return self._encoder.encode(model_input.iloc[:, 0].tolist())


set_model(EncoderModel())
