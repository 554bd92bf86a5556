"""Clusters are read from files, by name, and everything that is wrong with them is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from velodrome.api import clusters
from velodrome.clusters import target_of
from velodrome.clusters.ssh import SshOptions
from velodrome.errors import BadRequest

LAB = "lab:\n  launcher: ssh\n  hosts: [a, b]\n  python: /opt/python\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("VELODROME_CLUSTERS", raising=False)
    return tmp_path


def test_the_projects_file_wins_over_the_users_and_a_variable_over_both(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = elsewhere / "config" / "velodrome" / "clusters.yaml"
    users.parent.mkdir(parents=True)
    users.write_text("lab: {launcher: ssh, hosts: [x]}\nhome: {launcher: ssh, hosts: [y]}\n")
    (elsewhere / "clusters.yaml").write_text(LAB)
    options = target_of("lab").options
    assert isinstance(options, SshOptions)
    assert options.hosts == ["a", "b"]
    assert options.python == "/opt/python"
    assert target_of("home").launcher.name == "ssh"
    only = elsewhere / "only.yaml"
    only.write_text("other: {launcher: local}\n")
    monkeypatch.setenv("VELODROME_CLUSTERS", str(only))
    assert target_of("other").launcher.name == "local"
    with pytest.raises(BadRequest, match=r"--on 'lab': no such launcher; choose one of local, debug, .*, other"):
        target_of("lab")


@pytest.mark.parametrize(("text", "sentence"), [
    ("lab: [", "'clusters.yaml' is not YAML"),
    ("- lab", "must hold clusters by name, such as"),
    ("lab: {hosts: [a]}", "cluster 'lab' in clusters.yaml: its launcher is missing"),
    ("lab: {launcher: moon}", "cluster 'lab' in clusters.yaml: launcher 'moon' is unknown; choose one of local"),
    ("lab: {launcher: ssh}", "cluster 'lab' in clusters.yaml: the field 'hosts' is missing"),
    ("lab: {launcher: ssh, hosts: []}", "hosts"),
    ("lab: {launcher: ssh, hosts: [a], pyhton: x}", "no field 'pyhton': did you mean 'python'"),
    ("lab: {launcher: ssh, hosts: [a], silence: soon}", "silence 'soon': must be a valid number"),
    ("lab: {launcher: ssh, hosts: [a, a]}", "'a' is named twice"),
    ("lab: {launcher: ssh, hosts: ['-oProxyCommand=x']}", "'-oProxyCommand=x' is not the name of a host"),
    ("'a b': {launcher: local}", "a name begins with a letter"),
    ("lab: {launcher: local}\nlab: {launcher: debug}", "'lab' is defined twice, again in line 2"),
    ("lab: {launcher: ssh, hosts: [a], hosts: [b]}", "'hosts' is defined twice"),
    ("? [a]\n: {launcher: local}\n? {b: c}\n: 1", "is not YAML"),
    ("lab: !!bool x", "is not YAML"),
    ("lab: {launcher: ssh, hosts: [a], place: {server: ''}}", "place .*: 'server' on '' cannot be read"),
    ("lab: {launcher: ssh, hosts: [a], place: {'worker:x': a}}", "'worker:x' on 'a' cannot be read"),
    ("lab: {launcher: emulated, bandwidth: 1gbyte}", "lab.* in clusters.yaml: bandwidth='1gbyte' cannot be read"),
    ("lab: {launcher: emulated, nodes: 500}", "nodes='500' is not a number from 1 to 200"),
])
def test_what_is_wrong_with_a_file_is_said_with_the_value_and_the_file(
    elsewhere: Path, text: str, sentence: str
) -> None:
    (elsewhere / "clusters.yaml").write_text(text)
    with pytest.raises(BadRequest, match=sentence):
        target_of("lab")


def test_a_cluster_cannot_have_the_name_of_a_launcher(elsewhere: Path) -> None:
    (elsewhere / "clusters.yaml").write_text("ssh: {launcher: ssh, hosts: [a]}\nlab: {launcher: local}\n")
    with pytest.raises(BadRequest, match=r"cluster 'ssh' in clusters.yaml: that is the name of a launcher"):
        target_of("lab")


def test_a_variable_that_names_no_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VELODROME_CLUSTERS", "/no/such.yaml")
    with pytest.raises(BadRequest, match=r"VELODROME_CLUSTERS='/no/such.yaml': there is no such file"):
        target_of("lab")


def test_inline_forms_have_typed_options() -> None:
    ssh = target_of("ssh:host1, me@host2").options
    assert isinstance(ssh, SshOptions)
    assert ssh.hosts == ["host1", "me@host2"]
    assert target_of("emulated:nodes=3,bandwidth=1gbit").options.model_dump()["nodes"] == 3
    for nobody in ("ssh", "ssh:", "ssh: ", "ssh: , ,"):
        with pytest.raises(BadRequest, match=f"--on '{nobody}': name its hosts or options, as --on ssh:HOST,HOST"):
            target_of(nobody)


def test_a_cluster_that_is_added_is_listed_and_shown(elsewhere: Path) -> None:
    clusters.add("lab", "ssh:a,b", {"silence": 20})
    clusters.add("four", "emulated:nodes=4,bandwidth=1gbit")
    listed = {one["name"]: one for one in clusters.list()}
    assert listed["lab"]["hosts"] == ["a", "b"]
    assert listed["four"]["launcher"] == "emulated"
    shown = json.loads(json.dumps(clusters.show("lab")))
    assert shown["options"]["silence"] == 20
    assert shown["file"] == "clusters.yaml"
    with pytest.raises(BadRequest, match=r"cluster 'lab' is in clusters.yaml already"):
        clusters.add("lab", "ssh:c")
    with pytest.raises(BadRequest, match="cluster 'debug': that is the name of a launcher"):
        clusters.add("debug", "ssh:c")


@pytest.mark.parametrize("text", [
    "{lab: {launcher: local}}\n",
    "lab: {launcher: local}\n...\n",
    "---\nlab:\n  launcher: local\n...",
    "",
    "# nothing yet\n",
    "lab: {launcher: local}",
])
def test_a_cluster_is_added_to_a_file_of_any_style(elsewhere: Path, text: str) -> None:
    file = elsewhere / "clusters.yaml"
    file.write_text(text)
    clusters.add("four", "emulated:nodes=4")
    names = [one["name"] for one in clusters.list() if one["file"]]
    assert names == (["lab", "four"] if "lab" in text else ["four"])


def test_comments_stay_where_a_cluster_can_be_appended(elsewhere: Path) -> None:
    file = elsewhere / "clusters.yaml"
    file.write_text(f"# ours\n{LAB}")
    clusters.add("four", "emulated:nodes=4")
    assert file.read_text().startswith(f"# ours\n{LAB}\nfour:")


def test_a_cluster_that_cannot_be_added_leaves_the_file_as_it_is(elsewhere: Path) -> None:
    file = elsewhere / "clusters.yaml"
    for text in ("lab: [", "- lab", "lab: {launcher: local}\n---\nother: {launcher: local}\n"):
        file.write_text(text)
        with pytest.raises(BadRequest, match=r"clusters\.yaml"):
            clusters.add("four", "emulated:nodes=4")
        assert file.read_text() == text
