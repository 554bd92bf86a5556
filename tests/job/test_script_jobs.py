"""Jobs with a script: labels in place of what the script decides, and refusals of what it would ignore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from velodrome.catalog.world import Member, worlds
from velodrome.errors import BadRequest
from velodrome.job.job import Job, make_job
from velodrome.job.names import expand
from velodrome.job.race import Race, parse_vary
from velodrome.job.resolve import resolve
from velodrome.job.script import batch_note, differences, lengths, words_of


def test_what_a_script_decides_itself_is_a_label() -> None:
    job = resolve(Job(script="nets/train.py", workers=2), "torch")
    assert (job.engine, job.strategy, job.dataset, job.model) == ("torch", "script", "script", "nets/train.py")
    assert resolve(job) == job, "a stored job resolves to itself"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        pytest.param({"epochs": 3}, "--epochs: a script decides that itself", id="epochs"),
        pytest.param({"batch_size": 8}, "--batch-size: a script decides that itself", id="batch"),
        pytest.param({"dataset": "mnist"}, "--dataset: a script decides that itself", id="dataset"),
        pytest.param({"strategy": "ddp"}, "--strategy 'ddp': a script brings its own distribution", id="strategy"),
        pytest.param({"script_args": "--name 'x"}, "cannot be split into words: No closing quotation", id="quote"),
        pytest.param({"read": ["loss ("]}, "--read 'loss (' is not a regular expression", id="pattern"),
        pytest.param({"read": ["loss (.*)"]}, r"has no named group: write one such as 'loss: (?P<loss>", id="group"),
        pytest.param({"read": ["(?P<a>b)" * 500]}, "a pattern has at most 1,000 characters", id="long"),
    ],
)
def test_a_script_refuses_what_it_would_ignore(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        resolve(Job(script="train.py", **fields))
    assert sentence in str(refused.value)


@pytest.mark.parametrize("fields", [{"script_args": "--lr 1"}, {"read": ["(?P<loss>x)"]}, {"strategy": "script"}])
def test_what_is_for_scripts_is_refused_without_one(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="is for a script of your own: name it with --script"):
        resolve(Job(**fields))


def test_arguments_have_a_length_that_can_be_split() -> None:
    with pytest.raises(BadRequest, match=r"--script-args.*20000 characters"):
        make_job({"script": "train.py", "script_args": "a" * 20_001})


def test_arguments_are_split_as_in_a_shell_and_know_seed_and_workers() -> None:
    job = Job(script="a.py", script_args="--seed {seed} --name 'two words' -n{workers}", seed=7, workers=3)
    assert words_of(job) == ["--seed", "7", "--name", "two words", "-n3"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param("--batch {64/workers}", "--batch 32", id="divided"),
        pytest.param("-b{batch_size/workers} -s {seed + 100*workers}", "-b64 -s 207", id="fields"),
        pytest.param("{(batch_size - 28)/(workers*5)}", "10", id="parentheses"),
        pytest.param("--save w-{rank}.npy -j '{\"a\": 1}' x{2} {epoch}-{val_loss}", 'THE SAME', id="of-the-script"),
    ],
)
def test_placeholders_compute_with_the_fields_of_the_job_and_leave_others_alone(arguments: str, words: str) -> None:
    job = resolve(Job(script="a.py", script_args=arguments, seed=7, workers=2, batch_size=128), "torch")
    expected = arguments.replace("'", "") if words == "THE SAME" else words
    assert " ".join(words_of(job)) == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param("-b {64/workers}", "'{64/workers}' is 64/3, which is not a whole number", id="not-exact"),
        pytest.param("-b {64/(workers-3)}", "is 64/0, which is not a whole number", id="zero"),
        pytest.param("-b {64/wrkers}", "names 'wrkers', which is not a field: did you mean "
                                       "'workers'?", id="misspelled"),
        pytest.param("-b {batch/workers}", "names 'batch', which is not a field: did you mean "
                                           "'batch_size'?", id="other"),
        pytest.param("-b {workers*quux}", "names 'quux', which is not a field: choose one of workers, "
                                          "seed", id="unknown"),
        pytest.param("-b {64//workers}", "can have whole numbers, names of fields, + - * / and", id="floor"),
        pytest.param("-b {workers**9}", "can have whole numbers, names of fields, + - * / and", id="power"),
        pytest.param("-b {workers(1)}", "can have whole numbers, names of fields, + - * / and", id="call"),
        pytest.param("-b {64/workers +}", "cannot be read: write it as {64/workers}", id="syntax"),
        pytest.param("-t {threads}", "needs threads, which has no value: give --threads", id="no-value"),
    ],
)
def test_a_placeholder_that_cannot_be_computed_is_refused_in_a_sentence(arguments: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        resolve(Job(script="a.py", script_args=arguments, workers=3))
    assert sentence in str(refused.value)
    assert f"--script-args {arguments!r}" in str(refused.value)


CLASSIC = "--job_name={role} --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts} --lr {64/workers}"


def test_every_process_of_a_script_has_its_role_and_everybodys_addresses_in_its_arguments() -> None:
    job = resolve(Job(script="a.py", script_args=CLASSIC, workers=2, servers=1), "torch")
    members = [Member("worker", 0, "a", 1), Member("worker", 1, "b", 2), Member("server", 0, "fe80::1", 3)]
    everybody = ["--ps_hosts=[fe80::1]:3", "--worker_hosts=a:1,b:2", "--lr", "32"]
    assert [words_of(job, world) for world in worlds(members)] == [
        ["--job_name=worker", "--task_index=0", *everybody], ["--job_name=worker", "--task_index=1", *everybody],
        ["--job_name=ps", "--task_index=0", *everybody]]


@pytest.mark.parametrize(
    ("arguments", "servers", "sentence"),
    [
        pytest.param("--ps {ps_hosts}", 0, "'{ps_hosts}' are the addresses of parameter servers, and this job has none",
                     id="no-servers"),
        pytest.param("--ps {ps_host}", 1, "no placeholder '{ps_host}': did you mean 'ps_hosts'", id="misspelled"),
        pytest.param("--task {task_index}", 1, "no placeholder '{task_index}': write {index}", id="name-of-scripts"),
        pytest.param("--task {index+1}", 1, "names 'index', which is not a field", id="computed"),
    ],
)
def test_a_placeholder_of_a_process_that_does_not_exist_is_refused(arguments: str, servers: int, sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        resolve(Job(script="a.py", script_args=arguments, servers=servers))
    assert sentence in str(refused.value)
    assert f"--script-args {arguments!r}" in str(refused.value)


def test_with_servers_other_braces_are_still_of_the_script() -> None:
    job = resolve(Job(script="a.py", script_args="--save w-{rank}-{epoch}.npy", servers=1))
    assert words_of(job) == ["--save", "w-{rank}-{epoch}.npy"]


def test_a_field_that_arguments_pass_on_varies_in_a_race_and_is_part_of_names() -> None:
    job = {"script": "a.py", "script_args": "-b {batch_size/workers}"}
    entries = expand(Race(job=job, vary={"batch_size": [64, 128], "workers": [2]}))
    assert [entry.name for entry in entries] == ["torch-script-2w-64b-1", "torch-script-2w-128b-1"]
    with pytest.raises(BadRequest, match=r"pass it in --script-args as {batch_size} if it has such an argument"):
        resolve(Job(script="a.py", batch_size=64))


SOURCE = 'parser.add_argument("-b", "--batch-size", type=int, default=48)'


@pytest.mark.parametrize(
    ("arguments", "source", "offered"),
    [
        pytest.param("--batch-size 64 --lr 1", "", "--batch-size {64/workers}", id="argument"),
        pytest.param("--lr 1 --per_device_train_batch_size=8", "", "--per_device_train_batch_size={8/workers}", id="="),
        pytest.param("-b 16", SOURCE, "-b {16/workers}", id="short"),
        pytest.param("--lr 1", SOURCE, "--batch-size {48/workers} in --script-args", id="default"),
        pytest.param("--lr 1", "not python (", '--script-args "--batch-size {64/workers}"', id="unknown"),
    ],
)
def test_where_workers_vary_an_argument_that_keeps_the_global_batch_is_offered(
    arguments: str, source: str, offered: str
) -> None:
    jobs = [Job(script="a.py", script_args=arguments, workers=count) for count in (1, 2)]
    note = batch_note(jobs, source)
    assert offered in note
    assert "not the same training" in note
    assert batch_note(jobs[:1], source) == ""
    kept = [job.model_copy(update={"script_args": "-n {64/workers}"}) for job in jobs]
    assert batch_note(kept, source) == ""


@pytest.mark.parametrize(
    ("arguments", "source", "found"),
    [
        pytest.param("--epochs 90 --lr 0.1", "", {"epochs": 90}, id="epochs"),
        pytest.param("--max-steps=500", 'parser.add_argument("--num_epochs", default=3)', {"steps": 500, "epochs": 3},
                     id="both"),
        pytest.param("", 'parser.add_argument("--epochs", "-e", type=int, default=4)', {"epochs": 4}, id="default"),
        pytest.param("--epochs 2", 'parser.add_argument("--epochs", type=int, default=4)', {"epochs": 2}, id="wins"),
        pytest.param("--epochs many --step-size 7", "", {}, id="no-number"),
    ],
)
def test_how_long_a_script_trains_is_read_from_its_arguments_and_their_defaults(
    arguments: str, source: str, found: dict[str, int]
) -> None:
    assert lengths(arguments, source) == found


@pytest.mark.parametrize(
    ("arguments", "short"),
    [
        pytest.param(["--epochs 9 --lr 0.1 --data /long/path", "--epochs 9 --lr 0.01 --data /long/path"],
                     ["--lr 0.1", "--lr 0.01"], id="option"),
        pytest.param(["--lr=1 --fast", "--lr=1"], ["--fast", "--lr=1"], id="flag"),
        pytest.param(["--lr -0.5 a", "--lr -0.25 a"], ["--lr -0.5 a", "--lr -0.25 a"], id="negative"),
        pytest.param(["train a.yaml", "train b.yaml"], ["a.yaml", "b.yaml"], id="words"),
        pytest.param(["", "--fast"], ["", "--fast"], id="none"),
        pytest.param(["--x 'open", "--y"], ["--x 'open", "--y"], id="open-quote"),
    ],
)
def test_arguments_are_told_apart_by_what_differs(arguments: list[str], short: list[str]) -> None:
    assert [*differences(arguments).values()] == short


def test_a_race_varies_arguments_workers_and_engine_and_has_no_baseline_of_another_model() -> None:
    vary = parse_vary(["script_args=--lr 0.1,--lr 0.01", "workers=1,2", "engine=torch"])
    race = Race(job={"script": "train.py"}, vary=vary, baseline=True, named_by=["script_args"], repeat=2)
    entries = expand(race)
    assert [entry.name for entry in entries if entry.repetition == 2] == [
        "torch-script-1w-lr-0.1-2", "torch-script-2w-lr-0.1-2", "torch-script-1w-lr-0.01-2",
        "torch-script-2w-lr-0.01-2"]
    assert {(entry.job.seed, entry.repetition) for entry in entries} == {(1, 1), (2, 2)}


def test_quotes_hold_a_value_with_commas_together() -> None:
    assert parse_vary(['script_args="--sizes 1,2","--sizes 3"'])["script_args"] == ["--sizes 1,2", "--sizes 3"]
    with pytest.raises(BadRequest, match="a double quote is not closed"):
        parse_vary(['script_args="--sizes 1,2'])


@pytest.mark.parametrize(("declares", "passed"), [
    ('parser.add_argument("--{}")', True), ("tf.app.flags.DEFINE_string('{}', '', '')", True), ("# {}", False),
])
def test_the_usual_arguments_of_scripts_with_servers_are_passed_where_they_are_declared(
    tmp_path: Path, declares: str, passed: bool
) -> None:
    """Zipperle, section V.C and the author's scripts: `--job_name`, `--task_index`, `--ps_hosts`, `--worker_hosts`."""
    script = tmp_path / "train.py"
    script.write_text("\n".join(map(declares.format, ("job_name", "task_index", "ps_hosts", "worker_hosts"))))

    def arguments(**more: Any) -> str:
        return resolve(Job(script=str(script), engine="torch", workers=2, **more)).script_args

    usual = "--job_name={role} --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}"
    assert arguments(servers=1) == (usual if passed else "")
    assert arguments(servers=1, script_args="--rate 2") == (f"--rate 2 {usual}" if passed else "--rate 2")
    assert arguments(servers=1, script_args="--role={role}") == "--role={role}"
    assert arguments() == ""
