"""What many tutorials suggest: FastAPI, and the PyTorch model called for each request. Needs `pip install fastapi`."""

from __future__ import annotations

import io
import json
import socket
import sys
from pathlib import Path

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image

from velodrome.engines.torch.model_file import load

folder = Path(sys.argv[1])
about = json.loads((folder / "model.json").read_text())
model = load(folder)
channels, height, width = about["input_shape"]
app = FastAPI()


@app.post("/api/predict")
def predict(file: UploadFile) -> dict[str, object]:
    image = Image.open(io.BytesIO(file.file.read())).convert("L" if channels == 1 else "RGB").resize((width, height))
    pixels = torch.from_numpy(np.asarray(image, np.float32).reshape(height, width, channels)).permute(2, 0, 1)[None]
    with torch.inference_mode():
        probabilities = model(pixels * about["scale"]).softmax(1)[0]
    best = probabilities.argsort(descending=True)[:10]
    return {"predictions": [{"class": str(int(one)), "probability": float(probabilities[one])} for one in best]}


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
