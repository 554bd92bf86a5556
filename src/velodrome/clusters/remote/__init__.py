"""What clusters of hosts without a common disk have in common, whatever connects them."""

from __future__ import annotations

from pydantic import Field

from velodrome.clusters.definitions import ClusterOptions

DEFAULT_ROOT = "~/.cache/velodrome/host"
MEBIBYTE = 1 << 20


class RemoteOptions(ClusterOptions):
    """Fields of clusters whose hosts each have an agent."""

    python: str | None = Field(
        None, description="interpreter on the hosts that has velodrome and the engine; by default the one that "
        "`velodrome clusters prepare` made, else `python3`"
    )
    interpreters: dict[str, str] = Field(
        default_factory=dict, description="interpreters of engines that have one of their own, by the engine's name, "
        "with the framework if it has several: `horovod-torch`; by default that of the environment which `velodrome "
        "engines install` made on the host"
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="environment variables of all processes, such as VELODROME_CACHE or "
        "HTTPS_PROXY"
    )
    mirror: str | None = Field(
        None, description="folder on each host, or URL, with the publishers' files of data sets; by default "
        "VELODROME_DATA_MIRROR if that is a URL"
    )
    root: str = Field(
        DEFAULT_ROOT, description="folder on each host for code, environments and the folders of runs while they run"
    )
    shared_dir: str | None = Field(
        None, description="folder that all hosts and this machine see under the same path: runs are written there "
        "directly, and nothing is sent or brought back"
    )
    code: str | None = Field(
        None, description="folder of your code that is sent as a whole, without what `.gitignore` excludes; by default "
        "the modules that the job names and the local modules that they import"
    )
    code_limit: int = Field(50, ge=1, description="maximum size in MiB of your code that is sent")
    silence: float = Field(
        30.0, ge=2, description="seconds without a sign of life after which a host counts as lost, and after which it "
        "ends everything that was started on it"
    )
    data_timeout: float = Field(3600.0, gt=0, description="seconds that preparing the data on a host may take")
    addresses: dict[str, str] = Field(
        default_factory=dict,
        description="addresses at which the other hosts reach a host, by host name; by default the address that "
                    "this machine connected to"
    )
