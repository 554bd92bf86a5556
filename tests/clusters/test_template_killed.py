"""A process that imports an engine for others and is killed meanwhile is replaced once; then its end is reported."""

from __future__ import annotations

import os
import signal

import pytest

from velodrome.clusters.local import launcher as local
from velodrome.clusters.local.launcher import LocalLauncher
from velodrome.clusters.local.processes import Template, TemplateKilled

pytestmark = pytest.mark.integration


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Template]:
    """Every template that is started, in order."""
    templates: list[Template] = []

    def start(engine: str) -> Template:
        templates.append(Template(engine))
        return templates[-1]

    monkeypatch.setattr(local, "Template", start)
    return templates


def kill(template: Template) -> None:
    os.kill(template._popen.pid, signal.SIGKILL)


def test_a_template_that_is_killed_during_the_import_is_replaced(started: list[Template]) -> None:
    launcher = LocalLauncher()
    try:
        kill(launcher._template("torch"))
        launcher.prepare(["torch"])
        assert started[-1].alive
    finally:
        launcher.close()


def test_a_template_that_is_killed_again_is_reported_with_its_signal(
    started: list[Template], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Template.wait_until_ready

    def killed(template: Template) -> None:
        kill(template)
        wait(template)

    monkeypatch.setattr(Template, "wait_until_ready", killed)
    launcher = LocalLauncher()
    try:
        with pytest.raises(TemplateKilled, match="the process that imports torch was ended by SIGKILL"):
            launcher.prepare(["torch"])
        assert len(started) == 2
    finally:
        launcher.close()
