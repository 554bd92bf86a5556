"""A script of a user that goes wrong, or ends in an unusual way, as its first argument says. It needs no framework."""

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import velodrome

fault, *words = sys.argv[1:]
rank = int(os.environ["RANK"])


def epochs(count):
    velodrome.log(step=0)
    for epoch in range(count):
        for step in range(4):
            time.sleep(0.02)
            velodrome.log(step=4 * epoch + step + 1, examples=10 * (rank + 1), epoch=epoch, loss=1 / (epoch + 1))
        if rank == 0:
            velodrome.log(epoch=epoch, split="validation", examples=50, accuracy=0.5 + epoch / 10, f1=0.25)


if fault == "fine":
    about = {"argv": sys.argv, "name": __name__, "path": sys.path[0], "cwd": str(Path.cwd()), "file": __file__,
             "seed": os.environ["VELODROME_SEED"], "main": sys.modules["__main__"].__dict__ is globals()}
    print(json.dumps(about))
    atexit.register(print, "exit handler ran")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread ended"))).start()
    epochs(2)
    if rank == 0:
        velodrome.log(split="test", examples=200, accuracy=0.75)
    sys.exit(0)
if fault == "silent":
    time.sleep(0.2)
if fault == "prints":
    for epoch in range(3):
        time.sleep(0.05)
        print(f"epoch {epoch} loss: {1 / (epoch + 1):.3f} acc: {50 + epoch}% " + "a" * 40 + "!")
if fault == "raise" and rank == 1:
    raise ValueError("the user's own mistake")
if fault == "late" and rank == 1:
    time.sleep(1.5)
    raise ValueError("after rank 0 had ended")
if fault == "exit" and rank == 1:
    print("the data is missing", file=sys.stderr)
    sys.exit(3)
if fault == "leave":
    epochs(1)
    os._exit(0)
if fault == "sleep":
    epochs(1)
    if rank == 1:
        time.sleep(10_000)
if fault == "last":
    subprocess.Popen([words[0], "10000"], start_new_session=True)
    epochs(10_000)
