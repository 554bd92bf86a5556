"""Builds a Kubernetes for the tests from Debian's packages: its programs from the source package, an image for pods.

`python tests/servers/kubernetes_build.py` does it once, with the network and root, in 10 to 40 minutes. After that
`kubernetes_cluster.py` starts a cluster without any network.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import debian

HOME = Path(os.environ.get("VELODROME_TEST_CACHE") or "~/.cache/velodrome-test").expanduser() / "kubernetes"
READY = HOME / "ready-2"
BINARIES, IMAGES = HOME / "bin", HOME / "images"
VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
#: The image of the tests' pods, and that of the process which holds a pod's network.
POD_IMAGE, PAUSE_IMAGE = "localhost/velodrome-test:1", "localhost/pause:1"
_GO = Path("/usr/lib/go-1.19/bin/go")
_REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
_PACKAGES = (
    "golang-1.19-go", "golang-github-modern-go-reflect2-dev", "containerd", "runc", "containernetworking-plugins",
    "etcd-server", "iptables", "dnsmasq-base", "debootstrap", "conntrack", "iproute2", "dpkg-dev", "gcc", "libc6-dev",
)
_RUN_TIME_TOOLS = ("containerd", "runc", "etcd", "iptables", "dnsmasq", "conntrack", "ip", "nsenter", "unshare",
                   "setpriv", "openssl")
_IN_IMAGE = "python3,iproute2"
_SOURCES = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n"
_MIRRORS = (("http://deb.debian.org/debian", "bookworm"),
            ("http://deb.debian.org/debian-security", "bookworm-security"))
_PAUSE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def unavailable() -> str:
    """Why Kubernetes cannot be started here; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a Kubernetes of the tests needs Linux and root"
    if not READY.exists():
        return "Kubernetes is not built: make k8s (needs network and root, and takes 10 to 40 minutes)"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [tool for tool in _RUN_TIME_TOOLS if shutil.which(tool, path=path) is None]
    return f"missing tools: {', '.join(missing)}: make k8s" if missing else ""


def prepare() -> None:
    """Install Debian's packages, build the programs, and make the images, unless that was done."""
    if sys.platform != "linux" or os.geteuid() != 0 or not unavailable():
        return
    debian.install(_PACKAGES)
    HOME.mkdir(parents=True, exist_ok=True)
    for folder in (BINARIES, IMAGES):
        folder.mkdir(exist_ok=True)
    _make_images()
    if any(not (BINARIES / program).exists() for program in PROGRAMS):
        _build_programs(HOME / "build")
        shutil.rmtree(HOME / "build")
    READY.touch()


def _run(words: Sequence[str | Path], **options: object) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{words[0]} {words[1]}: {(done.stderr or done.stdout)[-3000:]}")


def _report(what: str, began: float) -> None:
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def _source(build: Path) -> Path:
    """Debian's source of Kubernetes, at its place in a GOPATH."""
    target = build / "gopath" / "src" / "k8s.io" / "kubernetes"
    if target.exists():
        return target
    began = time.monotonic()
    lists = build / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (build / "sources.list").write_text("".join(_SOURCES.format(mirror=mirror, suite=suite)
                                                for mirror, suite in _MIRRORS))
    apt = ["apt-get", "-q", "-o", f"Dir::Etc::SourceList={build / 'sources.list'}", "-o", "Dir::Etc::SourceParts=-",
           "-o", f"Dir::State::Lists={lists}"]
    _run([*apt, "update"], timeout=300)
    _run([*apt, "source", "--download-only", "kubernetes"], cwd=build, timeout=900)
    target.parent.mkdir(parents=True, exist_ok=True)
    unpacked = target.with_name("unpacked")
    shutil.rmtree(unpacked, ignore_errors=True)
    _run(["dpkg-source", "-x", next(build.glob("kubernetes_*.dsc")), unpacked], timeout=300)
    # The copy in the package does not fit Debian's compiler.
    vendored = unpacked / "vendor" / "github.com" / "modern-go" / "reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(_REFLECT2, vendored)
    unpacked.rename(target)
    _report("source", began)
    return target


def _build_programs(build: Path) -> None:
    build.mkdir(exist_ok=True)
    source = _source(build)
    environment = {
        **os.environ, "GOPATH": str(build / "gopath"), "GOCACHE": str(build / "cache"), "GOFLAGS": "", "GOPROXY": "off",
        "GO111MODULE": "off", "CGO_ENABLED": "0", "GOTMPDIR": str(build),
    }

    def go_build(package: str, output: Path, *words: str) -> None:
        began = time.monotonic()
        command = ["nice", "-n", "5", _GO, "build", *words, "-o", output, package]
        _run(command, cwd=source, env=environment, timeout=3600)
        _report(output.name, began)

    generated = source / "pkg" / "generated" / "openapi" / "zz_generated.openapi.go"
    if not generated.exists():
        generator = build / "openapi-gen"
        go_build("k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen", generator)
        _generate_openapi(generator, source, environment)
    version = "k8s.io/kubernetes/vendor/k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    link = (f"-s -w -X {version}.gitVersion=v{VERSION} -X {version}.gitMajor={major} -X {version}.gitMinor={minor} "
            f"-X {version}.gitTreeState=clean")
    for program in PROGRAMS:
        if not (BINARIES / program).exists():
            go_build(f"k8s.io/kubernetes/cmd/{program}", build / program, "-ldflags", link)
            (build / program).rename(BINARIES / program)


def _generate_openapi(generator: Path, source: Path, environment: dict[str, str]) -> None:
    """Write the description of the API, which the API server is compiled with and the package lacks."""
    packages = set()
    for root in ("pkg", "staging/src/k8s.io"):
        for path in (source / root).rglob("*.go"):
            if "+k8s:openapi-gen=" in path.read_text(errors="replace"):
                folder = path.parent.relative_to(source).as_posix()
                packages.add(f"k8s.io/kubernetes/{folder.replace('staging/src/', 'vendor/', 1)}")
    packages = {package for package in packages if "/testdata" not in package}
    began = time.monotonic()
    _run([
        generator, "-i", ",".join(sorted(packages)), "-p", "k8s.io/kubernetes/pkg/generated/openapi",
        "-O", "zz_generated.openapi", "-h", source / "hack" / "boilerplate" / "boilerplate.generatego.txt",
        "--output-base", source.parent.parent, "-r", source.parent / "violations",
    ], cwd=source, env=environment, timeout=1800)
    _report(f"description of the API, of {len(packages)} packages", began)


def _make_images() -> None:
    """The archives that nodes import."""
    pod, pause = IMAGES / "pod.tar", IMAGES / "pause.tar"
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        folder = Path(name)
        if not pause.exists():
            (folder / "pause.c").write_text(_PAUSE)
            (folder / "pause").mkdir()
            _run(["gcc", "-static", "-O2", "-o", folder / "pause" / "pause", folder / "pause.c"])
            _archive(folder / "pause", PAUSE_IMAGE, ["/pause"], pause)
        if not pod.exists():
            began, root = time.monotonic(), folder / "root"
            _run(["debootstrap", "--variant=minbase", f"--include={_IN_IMAGE}", "bookworm", root], timeout=1800)
            for unused in ("var/cache/apt", "var/lib/apt", "usr/share/doc", "usr/share/man", "usr/share/locale"):
                shutil.rmtree(root / unused, ignore_errors=True)
            (root / "root").chmod(0o755)  # folders of this machine below it are mounted in pods
            for device in (root / "dev").iterdir():
                if not device.is_dir():
                    device.unlink()
            _archive(root, POD_IMAGE, ["/bin/sh"], pod)
            _report("image of pods", began)


def _archive(root: Path, name: str, entry: list[str], path: Path) -> None:
    """Write a folder as an image of one layer, in the form of `docker save`."""
    layer = root.with_name("layer.tar")
    with tarfile.open(layer, "w") as tar:
        tar.add(root, arcname=".")
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": entry, "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}, "history": [{"created_by": "velodrome"}],
    }).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    temporary = path.with_suffix(".part")
    with tarfile.open(temporary, "w") as tar:
        for member, data in ((config_name, config), ("manifest.json", json.dumps(manifest).encode())):
            header = tarfile.TarInfo(member)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
        tar.add(layer, arcname=f"{digest}/layer.tar")
    layer.unlink()
    temporary.rename(path)


if __name__ == "__main__":
    prepare()
    print(unavailable() or f"Kubernetes {VERSION} is ready in {HOME}")
