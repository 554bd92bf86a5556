"""What is recorded: words of commands and addresses of pages, a file of expected text for each group."""

from __future__ import annotations

#: Races and runs of `stored`, and those of version 0.1 that are kept for `tests/run/test_old_runs.py`.
RACES = ("decided", "undecided", "until-sure", "partly-failed")
RUNS = ("torch-single", "torch-ddp", "tensorflow-single", "torch-failed", "torch-interrupted", "script-ddp")
_MEMBER = "decided/torch-ddp-2w-32b-1"

_RECOMMEND_OPTIONS = (
    "--objective throughput", "--objective accuracy", "--objective time-to-accuracy --target accuracy>=0.85",
    "--objective cost --price-per-hour 0.40 --target accuracy>=0.9", "--tolerance 0.5", "--accuracy-margin 0.5",
)

#: Words after `velodrome`. Each starts in a folder of its own that has `stored` as `runs`.
COMMANDS: dict[str, tuple[str, ...]] = {
    "recommend": tuple(f"recommend {race}{json}" for race in RACES for json in ("", " --json")),
    "recommend-options": (
        *(f"recommend decided {words}" for words in _RECOMMEND_OPTIONS),
        *(f"recommend undecided {words}" for words in _RECOMMEND_OPTIONS),
        "recommend until-sure --accuracy-margin 0.5",
        "recommend until-sure --objective accuracy",
    ),
    "recommend-between": (
        "recommend decided --between single,ddp", "recommend decided --between single,ddp --json",
        "recommend undecided --between batch-size=120,batch-size=128",
        "recommend until-sure --between batch-size=16,batch-size=64",
        "recommend until-sure --between batch-size=16,batch-size=64 --accuracy-margin 0.6 --json",
        "recommend decided --between torch,tensorflow", "recommend decided --between nonsense",
    ),
    "runs-list": (
        "runs list", "runs list --json", "runs list --all", "runs list --status failed",
        "runs list --all --status interrupted", "runs list --status nonsense", "runs list --runs nowhere",
    ),
    "runs-show": (
        *(f"runs show {name}" for name in (*RUNS, _MEMBER, *RACES)),
        "runs show absent",
    ),
    "runs-show-json": tuple(f"runs show {name} --json" for name in ("torch-ddp", "torch-interrupted", "undecided")),
    "runs-compare": (
        "runs compare torch-single tensorflow-single", "runs compare torch-single tensorflow-single --json",
        "runs compare torch-ddp torch-single", "runs compare torch-ddp script-ddp",
        "runs compare decided/torch-ddp-2w-32b-1 decided/torch-single-1w-32b-1",
        "runs compare torch-single torch-failed",
    ),
    "runs-check": (
        "runs check", "runs check --json", *(f"runs check {name}" for name in (*RUNS, *RACES)), "runs check absent",
    ),
    "runs-keep": (
        "runs export decided --format csv --out decided.csv", "runs export torch-single --format csv --out run.csv",
        "runs export partly-failed --format csv --out partly.csv --json",
        "runs export torch-ddp --out torch-ddp.zip", "runs export undecided --out undecided.tar.gz --json",
        "runs export absent", "runs rm torch-single", "runs rm torch-single until-sure --yes", "runs list",
    ),
    **{f"report-{form}": tuple(f"report {race} --format {form}" for race in RACES)
       for form in ("markdown", "csv", "latex")},
    "report": (
        "report decided --json", "report decided --format markdown --objective accuracy",
        "report undecided --format markdown --target accuracy>=0.7", "report absent",
        "report decided --format nonsense",
    ),
    "report-figures": ("report undecided --format markdown --figures figures",),
    **{f"report-html-{race}": (f"report {race}",) for race in RACES},
    "race-dry-run": (
        *(f"race runs/{race}/race.yaml --name {race} --dry-run" for race in RACES),
        "race runs/decided/race.yaml --name decided --repeat 8 --dry-run",
        "race runs/undecided/race.yaml --name undecided --until-sure --max-repeat 5 --dry-run",
        "race --name new --dataset digits --engine torch --workers 2 --vary strategy=single,ddp,zero1 --vary "
        "batch-size=32,64 --repeat 2 --dry-run --no-measure",
        "race --name new --dataset digits --engine torch --vary batch-size=32,64 --dry-run --no-measure --json",
        "race --name new --dataset digits --vary entry=tensorflow/parameter-server:1,torch/ddp --vary workers=1,2 "
        "--dry-run --no-measure",
        "race --name fresh --dataset digits --engine torch --vary strategy=ddp,nonsense --vary workers=1,0",
        "race runs/decided/race.yaml --name undecided --dry-run",
        "race --name new --dataset digits --vary nonsense=1,2 --dry-run",
    ),
    "plan": (
        "plan --engine torch --strategy ddp --workers 2 --hosts 10.0.0.1,10.0.0.2 --name first",
        "plan --engine torch --strategy ddp --workers 2 --hosts 10.0.0.1,10.0.0.2 --name first --json",
        "plan --engine tensorflow --strategy multi-worker-mirrored --workers 3 --hosts 10.0.0.1,10.0.0.2,10.0.0.3 "
        "--name first",
        "plan --engine tensorflow --strategy parameter-server --workers 2 --servers 1 --batch-scope per-worker "
        "--hosts 10.0.0.1,10.0.0.2 --place server=10.0.0.2 --name first",
        "plan --engine torch --strategy allreduce --workers 4 --hosts 10.0.0.1,10.0.0.2 --port 31000 --name first",
        "plan runs/torch-ddp/job.yaml --hosts 10.0.0.1 --name again",
        *(f"plan --engine torch --strategy ddp --workers 2 --hosts 10.0.0.1,10.0.0.2 --name first --format {form}"
          for form in ("slurm", "skypilot", "compose")),
        "plan --engine torch --strategy ddp --workers 2 --name first --format k8s --on k8s:image=torch:1,gpus=1",
        "plan --engine tensorflow --strategy parameter-server --workers 2 --servers 1 --batch-scope per-worker "
        "--name first --format jobset --on k8s:image=tensorflow:1",
        "plan --engine torch --strategy ddp --workers 2 --format k8s",
        "plan --engine torch --strategy nonsense --hosts 10.0.0.1",
    ),
    "engines": ("engines",),
    "engines-json": ("engines --json",),
    "studies": (
        "study list", "study list --json",
        *(f"study show {name}" for name in ("aws-2023", "fruits-horovod", "jaeger-2018", "kouskouras-2022",
                                            "zipperle-2018")),
        "study show zipperle-2018 --scale smoke", "study show nobody",
    ),
    "studies-json": ("study show zipperle-2018 --scale small --json",),
    "studies-dry-run": (
        "study run zipperle-2018 --scale smoke --dry-run --dataset digits",
        "study run aws-2023 --scale smoke --dry-run --dataset digits --name aws",
        "study run aws-2023",
    ),
    "data": ("data list", "data list --json", "data verify digits", "data show nonsense"),
    "clusters": (
        "clusters list", "clusters list --json", "clusters show local", "clusters show debug",
        "clusters add four emulated:nodes=4,bandwidth=100Mbit", "clusters show four", "clusters list",
        "clusters show absent",
    ),
    "examples": ("examples list", "examples list --json"),
    "refused": (
        "trian", "train --wrokers 2", "train --workers 0", "train --engine nonsense", "train --strategy nonsense",
        "train --dataset nonsense", "train --model nonsense", "train --model lenet5", "train --model-arg width",
        "train --name ../evil", "train --epochs ten", "train absent.yaml", "train --optimizer nonsense",
        "train --target accuracy", "train --on nowhere", "resume torch-single", "resume absent", "export absent",
        "export torch-failed", "predict absent x.png", "serve absent", "attach torch-single", "compare",
        "new nonsense", "race absent.yaml", "report", "recommend absent", "study show",
        "ui --runs nowhere --port 70000",
    ),
}

#: Addresses of `velodrome ui`. Beginnings of the answers that are JSON, or pages, decide how they are written down.
PAGES: dict[str, tuple[str, ...]] = {
    "web-races": ("/", "/?part=rows", "/?status=failed", "/?q=torch&kind=run"),
    "web-race": ("/races/decided", "/races/partly-failed"),
    "web-run": ("/runs/torch-single", "/runs/decided/torch-ddp-2w-32b-1"),
    "web-run-others": ("/runs/torch-failed", "/runs/torch-interrupted", "/runs/script-ddp"),
    "web-compare": (
        "/compare", "/compare?run=torch-single&run=tensorflow-single",
        "/compare?run=decided/torch-ddp-2w-32b-1&run=decided/torch-single-1w-32b-1",
    ),
    "web-new": ("/new", "/new?dataset=digits&engine=torch"),
    "web-errors": ("/nothing", "/runs/absent", "/api/races/absent"),
    "web-api": (
        "/api/races", "/api/runs", "/api/runs?status=failed", "/api/runs/torch-single/logs?q=e",
        "/api/runs/torch-failed/logs", "/api/compare?run=torch-single&run=torch-ddp",
    ),
    "web-api-race": ("/api/races/undecided",),
    "web-api-run": ("/api/runs/torch-ddp/view",),
}

#: Addresses of `velodrome serve torch-single`.
MODEL_PAGES = ("/", "/api/models", "/openapi.json")
