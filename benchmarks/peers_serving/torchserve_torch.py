"""TorchServe with a handler that calls the PyTorch model: two workers, batches of up to 16 that wait 2 ms at most.

Needs Java and `pip install torchserve`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

HANDLER = '''
import io, json
from pathlib import Path
import numpy as np
import torch
from PIL import Image
from velodrome.engines.torch.model_file import load

FOLDER = Path({folder!r})
about, model = json.loads((FOLDER / "model.json").read_text()), None


def handle(data, context):
    global model
    if model is None:
        torch.set_num_threads(1)  # two workers on two cores
        model = load(FOLDER)
    if data is None:
        return None
    channels, height, width = about["input_shape"]
    pixels = [np.asarray(Image.open(io.BytesIO(one["file"])).convert("L" if channels == 1 else "RGB")
                         .resize((width, height)), np.float32).reshape(height, width, channels) for one in data]
    with torch.inference_mode():
        found = model(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) * about["scale"]).softmax(1)
    answers = []
    for row in found:
        best = row.argsort(descending=True)[:10]
        answers.append({{"predictions": [{{"class": str(int(one)), "probability": float(row[one])}} for one in best]}})
    return answers
'''
MANIFEST = {"runtime": "python", "archiverVersion": "0.12.0",
            "model": {"modelName": "m", "modelVersion": "1.0", "handler": "handler.py"}}
VERSION = {"defaultVersion": True, "marName": "m.mar", "minWorkers": 2, "maxWorkers": 2, "batchSize": 16,
           "maxBatchDelay": 2, "responseTimeout": 60}
START_SECONDS = 120


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="velodrome-torchserve-") as name:
        home = Path(name)
        with zipfile.ZipFile(home / "m.mar", "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(MANIFEST))
            archive.writestr("handler.py", HANDLER.format(folder=str(Path(sys.argv[1]).resolve())))
        ports = {kind: free_port() for kind in ("inference", "management", "metrics")}
        (home / "config").write_text("".join([
            *(f"{kind}_address=http://127.0.0.1:{port}\n" for kind, port in ports.items()),
            f"grpc_inference_port={free_port()}\ngrpc_management_port={free_port()}\nload_models=m.mar\n",
            "disable_token_authorization=true\ndisable_system_metrics=true\ninstall_py_dep_per_model=false\n",
            f"models={json.dumps({'m': {'1.0': VERSION}})}\n",
        ]))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        words = ["--start", "--foreground", "--model-store", name, "--ts-config", str(home / "config"),
                 "--disable-token-auth"]
        with (home / "log").open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-c", "from ts.model_server import start; start()", *words], cwd=home, stdout=log,
                stderr=log, start_new_session=True, env={**os.environ, "PATH": path, "LOG_LOCATION": name},
            )
            try:
                wait(f"http://127.0.0.1:{ports['inference']}/ping", server, home / "log")
                print(f"http://127.0.0.1:{ports['inference']}/predictions/m", flush=True)
                server.wait()
            except KeyboardInterrupt:
                pass
            finally:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(10)


def wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until its workers are there."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                if b"Healthy" in answer.read():
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.3)
    raise SystemExit(f"TorchServe did not start:\n{log.read_text()[-2000:]}")


if __name__ == "__main__":
    main()
