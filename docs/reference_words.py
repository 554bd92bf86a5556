"""What the files of a run folder hold: the words of the generated reference that no model in the code carries."""

from __future__ import annotations

from velodrome.models.model_files import MODEL_FILES

FOLDER: dict[str, str] = {
    "job.yaml": "the job with every default filled in: `velodrome train job.yaml` runs it again",
    "plan.json": "every process with host, port and environment",
    "events.jsonl": "every [event](events.md) of the processes, one JSON object per line",
    "events-ROLE-RANK.jsonl": "the same of one process, in runs that were started manually",
    "logs/": "what each process printed, one file each (`worker-0.log`), and the stack of one that stalled",
    "checkpoints/": "the newest two, one safetensors file per epoch",
    "model/": "the trained model, in some of the following files; none before the end of the run",
    **{f"model/{name}": what for name, what in MODEL_FILES.items()},
    "horovod-timeline.json": "Horovod's timeline of the first steps: `chrome://tracing` and ui.perfetto.dev show it",
    "tensorboard/": "scalars: `tensorboard --logdir runs` shows them",
    "result.json": "how it ended; missing while the run is under way",
    "controller.lock": "locked while a command writes here; a run without lock and result was interrupted",
    ".reserve": "space kept to report a full disk; removed at the end",
    ".saving-…/": "a user's Keras model, saved and loaded once before training; removed at once",
}
