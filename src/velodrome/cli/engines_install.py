"""`velodrome engines install` and `velodrome engines remove`: environments of engines that cannot share ours."""

from __future__ import annotations

from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.options import Json
from velodrome.cli.output import say, say_json

EngineName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the engine.", autocompletion=completion.field("engine")),
]
_SEVERAL = "Framework of an engine that trains with several, as horovod does"
Framework = Annotated[
    str | None,
    typer.Option("--framework", help=f"{_SEVERAL}; by default torch.", autocompletion=completion.field("framework")),
]
RemovedFramework = Annotated[
    str | None,
    typer.Option("--framework", help=f"{_SEVERAL}; by default all of them.",
                 autocompletion=completion.field("framework")),
]


def install(name: EngineName, framework: Framework = None, json: Json = False) -> None:
    """Create or repair the environment of an engine that needs other package versions than Velodrome.

    It is stored in $VELODROME_ENVIRONMENTS, by default ~/.local/share/velodrome/environments, for all projects.

    Example: `velodrome engines install mxnet`
    """
    from velodrome.api.engines import install_engine
    from velodrome.cli.engines_progress import progress_of

    with progress_of(name, quiet=json) as progress:
        installed = install_engine(name, progress, framework=framework)
    if json:
        say_json(installed)
        return
    done = f"installed in {installed['seconds']:.0f} s" if installed["changed"] else "installed already"
    say(f"{name}: {done}, {installed['interpreter']}")


def remove(name: EngineName, framework: RemovedFramework = None, json: Json = False) -> None:
    """Remove the environment of an engine; without --framework, its environments for all frameworks.

    Example: `velodrome engines remove mxnet`
    """
    from velodrome.api.engines import remove_engine
    from velodrome.cli.engines_progress import progress_of

    with progress_of(name, quiet=json) as progress:
        removed = remove_engine(name, progress, framework=framework)
    if json:
        say_json({"engine": name, "removed": removed})
        return
    say(f"{name}: removed" if removed else f"{name}: not installed, nothing to remove")
