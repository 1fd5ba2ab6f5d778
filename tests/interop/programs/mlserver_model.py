"""The tiny model for MLServer, which imports this file: `mlserver start FOLDER`."""

from __future__ import annotations

import network  # type: ignore[import-not-found]  # it lies beside this file
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Net(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        labels = network.answer(self.decode(payload.inputs[0], default_codec=NumpyCodec))
        output = NumpyCodec.encode_output(network.OUTPUT, labels)
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=[output])
