"""The table and the figure of a language model's run, made from its folder: perplexity epoch by epoch.

    velodrome train --dataset ptb --model lstm-small --threads 1 --seed 1 --runs runs --name ptb-lstm-small
    .venv/bin/python benchmarks/language_model.py runs/ptb-lstm-small \\
        --figure docs/images/ptb-lstm-small.svg --page docs/results-language-model.md

    velodrome train --dataset ptb --model gpt-mini --optimizer adamw --learning-rate 0.002 --weight-decay 0.1 \\
        --warmup 200 --schedule cosine --threads 1 --seed 1 --runs runs --name ptb-gpt-mini
    .venv/bin/python benchmarks/language_model.py runs/ptb-gpt-mini \\
        --figure docs/images/ptb-gpt-mini.svg --page docs/results-gpt-mini.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from ngrams import baselines

from velodrome.clusters.yaml_files import read_yaml
from velodrome.data import catalogue
from velodrome.job.job import Job
from velodrome.job.read import make_job
from velodrome.job.resolve import resolve

#: Published for `lstm-small`: about 115; what this benchmark has to reach.
PUBLISHED, TO_REACH = 115.0, 120.0


@dataclass(frozen=True)
class Mark:
    """What a run is compared with: a sentence, a line of the figure, and the perplexity that has to be reached."""

    sentence: str
    label: str
    perplexity: float
    to_reach: float


def mark_of(result: dict[str, Any]) -> Mark:
    """The published perplexity where there is one, else that of a bigram model of the same text."""
    if (result["dataset"], result["model"]) == ("ptb", "lstm-small"):
        published = f"about {PUBLISHED:.0f}"
        return Mark(f"published for this model: {published}", f"published: {published}", PUBLISHED, TO_REACH)
    text = catalogue.load_text(result["dataset"])
    found = baselines(text.train, text.test, len(text.vocabulary))
    bigram = found["bigram"]
    sentence = f"of n-gram models of the same text: unigram {found['unigram']:.2f}, bigram {bigram:.2f}"
    return Mark(sentence, f"bigram model: {bigram:.1f}", bigram, bigram)


def command(job: Job) -> str:
    """The command of a run: what it asked for beyond the defaults of its model, two lines at most."""
    plain = resolve(Job(dataset=job.dataset, model=job.model, engine=job.engine))
    always = ("dataset", "model", "engine", "strategy")
    asked = {name: value for name, value in resolve(job).model_dump().items() if value != getattr(plain, name)}
    words = [
        f"--{name.replace('_', '-')} {getattr(job, name)}" for name in dict.fromkeys([*always, *asked, "seed"])
    ]
    half = -(-len(words) // 2)
    return f"velodrome train {' '.join(words[:half])} \\\n    {' '.join(words[half:])}"


def table(result: dict[str, Any]) -> str:
    columns = ["epoch", "learning rate", "training perplexity", "validation perplexity", "seconds"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for entry in result["history"]:
        lines.append(
            f"| {entry['epoch']} | {entry['learning_rate']:.4g} | {entry['train_perplexity']:.1f} "
            f"| {entry['validation_perplexity']:.1f} | {entry['seconds']:.0f} |"
        )
    return "\n".join(lines)


def page(result: dict[str, Any], job: Job, mark: Mark) -> str:
    """The run as a page of the documentation."""
    test, seconds, versions = result["test"], result["seconds"], result["versions"]
    # The last start's own time is shorter than the training of all starts.
    resumed = seconds["total"] < seconds["train"]
    paused = "; the run was interrupted and resumed from its checkpoints" if resumed else ""
    frameworks = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"""# {result["model"]} on {result["dataset"]}: a run

One run, reported by `benchmarks/language_model.py`:

```text
{command(job)}
```

**Test perplexity {test["perplexity"]:.2f}** over {test["total"]:,} words; {mark.sentence}.
Training took {seconds["train"]:,.0f} s, evaluation {seconds["evaluate"]:,.0f} s{paused}. Perplexities
repeat up to rounding; seconds depend on the machine and on what else it does. Versions: {frameworks}.

{table(result)}

The learning rate is that of an epoch's last step.
"""


def figure(result: dict[str, Any], path: Path, mark: Mark) -> None:
    epochs = [entry["epoch"] for entry in result["history"]]
    drawing, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for name, style in (("train", "--"), ("validation", "-")):
        values = [entry[f"{name}_perplexity"] for entry in result["history"]]
        axes.plot(epochs, values, style, marker="o", markersize=3, label={"train": "training"}.get(name, name))
    test = result["test"]["perplexity"]
    axes.axhline(test, color="black", linewidth=0.8, label=f"test at the end: {test:.1f}")
    axes.axhline(mark.perplexity, color="grey", linewidth=0.8, linestyle=":", label=mark.label)
    axes.set(xlabel="epoch", ylabel="perplexity", yscale="log", xticks=epochs)
    axes.yaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    axes.yaxis.set_minor_formatter(matplotlib.ticker.ScalarFormatter())
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--figure", type=Path, help="SVG or PNG to draw")
    parser.add_argument("--page", type=Path, help="Markdown to write")
    options = parser.parse_args()
    try:
        result = json.loads((options.run / "result.json").read_text(encoding="utf-8"))
    except OSError as error:
        parser.error(f"{str(options.run)!r} has no result ({error.strerror}): wait for the run to finish")
    if not result.get("test") or result["test"].get("perplexity") is None:
        parser.error(f"{str(options.run)!r} is no finished run of a language model")
    job = make_job(read_yaml(options.run / "job.yaml"))
    mark = mark_of(result)
    text = page(result, job, mark)
    print(text)
    if options.figure:
        figure(result, options.figure, mark)
    if options.page:
        drawn = ""
        if options.figure:
            where = os.path.relpath(options.figure, options.page.parent)
            drawn = f"\n![perplexity by epoch, in training and on the validation text]({where})\n"
        options.page.write_text(text + drawn, encoding="utf-8")
    return int(result["test"]["perplexity"] > mark.to_reach)


if __name__ == "__main__":
    sys.exit(main())
