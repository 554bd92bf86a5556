"""Starts all programs of a Kubernetes of the tests, in namespaces that end with it, containers included.

`python kubernetes_inside.py FOLDER` reads commands from its standard input, a line each, and answers each with a line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from kubernetes_build import BINARIES, IMAGES, PAUSE_IMAGE
from kubernetes_keys import Authority

_NODES = ("n1", "n2")
_API, _API_PORT = "10.99.0.1", 6443
_READY_SECONDS = 120.0
_CGROUPS = Path("/sys/fs/cgroup")
#: What the kubelet wants of the whole machine is shown to it in place of the machine's own values.
_SYSCTLS = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}


def address_of(node: str) -> str:
    return f"10.99.0.{node[1:]}"


def _in_memory(folder: Path) -> None:
    """A folder that is gone with its namespace, in no time."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g,mode=755", "velodrome-test", str(folder)], check=True)


class Node:
    """A network, a mount and a host name of their own, with a containerd and a kubelet."""

    def __init__(self, name: str, folder: Path, group: str) -> None:
        self.name, self.folder, self.group = name, folder / name, group
        _in_memory(self.folder)
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-c",
             f"hostname {name}; echo ready; exec sleep infinity"], stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None
        self.holder.stdout.readline()

    def enter(self, *words: str | Path) -> list[str]:
        """The command that runs another one on the node."""
        return ["nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--uts", "--", *map(str, words)]

    def run(self, *words: str | Path, check: bool = True) -> None:
        subprocess.run(self.enter(*words), check=check, capture_output=True, timeout=60)

    def prepare(self) -> None:
        """Folders and values of the machine that only this node sees."""
        script = ["set -e"]
        for place in ("log/pods", "log/containers", "lib/cni", "lib/kubelet"):
            own = self.folder / place.replace("/", "-")
            own.mkdir()
            script += [f"mkdir -p /var/{place}", f"mount --bind {own} /var/{place}"]
        script.append("umount /sys/fs/cgroup/unified || true")
        (self.folder / "sys").mkdir()
        for number, (name, value) in enumerate(_SYSCTLS.items()):
            own = self.folder / "sys" / str(number)
            own.write_text(f"{value}\n")
            script.append(f"mount --bind {own} /proc/sys/{name}")
        self.run("sh", "-c", "\n".join(script))
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": "k8s", "plugins": [{
                "type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": f"10.244.{self.name[1:]}.0/24"}]],
                         "routes": [{"dst": "0.0.0.0/0"}]},
            }],
        }))
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(folder=self.folder, pause=PAUSE_IMAGE))
        (self.folder / "resolv.conf").write_text("")
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))

    def _kubelet(self) -> dict[str, object]:
        keys = self.folder.parent / "keys"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": address_of(self.name), "healthzBindAddress": "127.0.0.1",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": str(keys / "ca.crt")}},
            "authorization": {"mode": "Webhook"}, "tlsCertFile": str(keys / f"{self.name}.crt"),
            "tlsPrivateKeyFile": str(keys / f"{self.name}.key"), "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}", "cgroupsPerQOS": True, "enforceNodeAllocatable": ["pods"],
            "oomScoreAdj": 0, "failSwapOn": False, "clusterDomain": "cluster.local", "clusterDNS": [_API],
            "resolvConf": str(self.folder / "resolv.conf"), "nodeStatusUpdateFrequency": "4s",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "registryPullQPS": 0, "eventRecordQPS": 0, "serializeImagePulls": False, "kubeAPIQPS": 50,
            "syncFrequency": "10s",
        }


_CONTAINERD = """
version = 2
root = "{folder}/containerd"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""


class Inside:
    """All programs of the cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _in_memory(folder / "etcd")
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes = {name: Node(name, folder, f"{folder.name}-{name}") for name in _NODES}
        self._network()
        self.port = self._forward()
        self._keys()

    def start(self, name: str, words: Sequence[str | Path]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                ["nice", "-n", "2", *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        self.programs[name].send_signal(number)
        self.programs[name].wait(30)

    def _network(self) -> None:
        first, second = (self.nodes[name] for name in _NODES)
        first.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(second.holder.pid))
        for node, other in ((first, second), (second, first)):
            for words in (
                ["link", "set", "lo", "up"], ["address", "add", f"{address_of(node.name)}/24", "dev", "eth0"],
                ["link", "set", "eth0", "up"],
                ["route", "add", f"10.244.{other.name[1:]}.0/24", "via", address_of(other.name)],
                ["route", "add", "10.96.0.0/16", "dev", "lo", "scope", "link"],
            ):
                node.run("ip", *words)
            node.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _forward(self) -> int:
        """Let this machine reach the API server at a port of loopback: nothing is added to its network."""
        listener = socket.create_server(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        words = [sys.executable, Path(__file__).with_name("kubernetes_forward.py"), listener.fileno(), _API, _API_PORT]
        node = self.nodes["n1"]
        self.programs["forward"] = subprocess.Popen(
            ["nsenter", f"--target={node.holder.pid}", "--net", "--", *map(str, words)], stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
        listener.close()
        return port

    def _keys(self) -> None:
        keys = Authority(self.folder / "keys")
        keys.issue("apiserver", "kube-apiserver", addresses=(_API, "127.0.0.1", "10.96.0.1"))
        keys.issue("service-accounts", "service-accounts")
        keys.issue("admin", "admin", "system:masters")
        keys.issue("user", "user")
        for name in ("controller-manager", "scheduler", "proxy"):
            keys.issue(name, f"system:kube-{name}")
            keys.kubeconfig(name, f"https://{_API}:{_API_PORT}")
        for name in _NODES:
            keys.issue(name, f"system:node:{name}", "system:nodes", (address_of(name),))
            keys.kubeconfig(name, f"https://{_API}:{_API_PORT}")
        for name in ("admin", "user"):
            keys.kubeconfig(name, f"https://127.0.0.1:{self.port}")

    def ask(self, path: str) -> str:
        """What the API server answers to an administrator."""
        keys = self.folder / "keys"
        tls = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        tls.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
        with opener.open(f"https://127.0.0.1:{self.port}/{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def wait(self, what: str, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            with suppress(OSError, ValueError, urllib.error.URLError):
                if is_done():
                    return
            if time.monotonic() > deadline:
                logs = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in sorted(
                    self.folder.glob("*.log")))
                raise RuntimeError(f"{what} did not come up:\n{logs}")
            time.sleep(0.1)

    def api_server(self) -> None:
        keys = self.folder / "keys"
        self.start("apiserver", self.nodes["n1"].enter(
            BINARIES / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--bind-address={_API}",
            f"--advertise-address={_API}", f"--secure-port={_API_PORT}", "--insecure-port=0",
            f"--client-ca-file={keys}/ca.crt", f"--tls-cert-file={keys}/apiserver.crt",
            f"--tls-private-key-file={keys}/apiserver.key", "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-key-file={keys}/service-accounts.pub",
            f"--service-account-signing-key-file={keys}/service-accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--feature-gates=TTLAfterFinished=true",
            f"--kubelet-client-certificate={keys}/admin.crt", f"--kubelet-client-key={keys}/admin.key",
            f"--kubelet-certificate-authority={keys}/ca.crt", "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true", "--default-not-ready-toleration-seconds=20",
            "--default-unreachable-toleration-seconds=20", "--v=1",
        ))
        self.wait("the API server", lambda: self.ask("readyz") == "ok")

    def control(self) -> None:
        node, keys = self.nodes["n1"], self.folder / "keys"
        self.start("etcd", node.enter(
            "etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync",
            "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
            "--listen-peer-urls", "http://127.0.0.1:2380",
        ))
        self.api_server()
        ours = {name: keys / f"{name}.kubeconfig" for name in ("controller-manager", "scheduler", "proxy")}
        for name, words in {
            "controller-manager": [
                f"--service-account-private-key-file={keys}/service-accounts.key", f"--root-ca-file={keys}/ca.crt",
                "--use-service-account-credentials=true", "--cluster-cidr=10.244.0.0/16",
                "--allocate-node-cidrs=false", "--node-monitor-grace-period=20s", "--node-monitor-period=2s",
                "--feature-gates=TTLAfterFinished=true", "--kube-api-qps=100", "--kube-api-burst=200",
            ],
            "scheduler": [],
        }.items():
            config = ours[name]
            self.start(name, node.enter(
                BINARIES / f"kube-{name}", f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1", "--port=0",
                "--leader-elect=false", *words,
            ))
        for each in self.nodes.values():
            self.start(f"proxy-{each.name}", each.enter(
                BINARIES / "kube-proxy", f"--kubeconfig={ours['proxy']}", f"--hostname-override={each.name}",
                "--proxy-mode=iptables", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0", "--cluster-cidr=10.244.0.0/16",
            ))

    def containerd(self, node: Node) -> None:
        node.prepare()
        self.start(f"containerd-{node.name}", node.enter("containerd", "-c", node.folder / "containerd.toml"))
        self.wait("containerd", (node.folder / "containerd.sock").exists)
        for name in ("pause", "pod"):
            for _ in range(50):
                ran = subprocess.run(node.enter(
                    "ctr", "-a", node.folder / "containerd.sock", "-n", "k8s.io", "images", "import",
                    IMAGES / f"{name}.tar",
                ), capture_output=True, timeout=300)
                if not ran.returncode:
                    break
                time.sleep(0.1)
            else:
                raise RuntimeError(f"image {name}: {ran.stderr.decode()[-500:]}")

    def kubelet(self, node: Node) -> None:
        self.start(f"kubelet-{node.name}", node.enter(
            BINARIES / "kubelet", f"--config={node.folder}/kubelet.yaml",
            f"--kubeconfig={self.folder}/keys/{node.name}.kubeconfig", f"--hostname-override={node.name}",
            f"--node-ip={address_of(node.name)}", "--root-dir=/var/lib/kubelet", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{node.folder}/containerd.sock",
            f"--pod-infra-container-image={PAUSE_IMAGE}", "--v=2",
        ))

    def ready_nodes(self) -> list[str]:
        items = json.loads(self.ask("api/v1/nodes"))["items"]
        return [item["metadata"]["name"] for item in items if any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in item["status"]["conditions"]
        )]

    def up(self) -> None:
        """Start everything; return when both nodes take pods."""
        images = [threading.Thread(target=self.containerd, args=(node,)) for node in self.nodes.values()]
        for thread in images:
            thread.start()
        self.control()
        account = "api/v1/namespaces/default/serviceaccounts/default"
        self.wait("the service account", lambda: "default" in self.ask(account))
        for thread in images:
            thread.join()
        for node in self.nodes.values():
            self.kubelet(node)
        self._names()
        self.wait("the nodes", lambda: len(self.ready_nodes()) == len(_NODES))

    def _names(self) -> None:
        """DNS: dnsmasq with the endpoints of the headless services."""
        hosts = self.folder / "hosts"
        hosts.touch()
        threading.Thread(target=self._feed, args=(hosts, self.nodes["n1"].enter(
            "dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", f"--addn-hosts={hosts}", "--user=root",
            f"--listen-address={_API}", "--bind-interfaces", "--local=/cluster.local/", "--pid-file=", "--local-ttl=0",
        )), daemon=True).start()

    def _feed(self, hosts: Path, words: list[str]) -> None:
        before = ""
        self.start("dns", words)
        while True:
            if self.programs["dns"].poll() is not None:  # a signal may come before it is ready for one
                self.start("dns", words)
            with suppress(OSError, ValueError, KeyError, TypeError):
                rows = []
                for item in json.loads(self.ask("api/v1/endpoints"))["items"]:
                    service = f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc.cluster.local"
                    for subset in item.get("subsets") or []:
                        for address in subset.get("addresses") or []:
                            own = f"{address['hostname']}.{service} " if address.get("hostname") else ""
                            rows.append(f"{address['ip']} {own}{service}\n")
                if (now := "".join(sorted(rows))) != before:
                    hosts.write_text(now)
                    self.programs["dns"].send_signal(signal.SIGHUP)
                    before = now
            time.sleep(0.3)

    def obey(self, line: str) -> None:
        """What tests do to the cluster."""
        action, _, name = line.partition(" ")
        if action == "kill":
            self.kill(name)
        elif action == "api-server":
            self.api_server()
        elif action == "kubelet":
            self.kubelet(self.nodes[name])
            self.wait("the node", lambda: name in self.ready_nodes())
        elif action in ("cut", "heal"):
            self.nodes[name].run("ip", "link", "set", "eth0", "down" if action == "cut" else "up")
            if action == "heal":
                other = next(each for each in _NODES if each != name)
                self.nodes[name].run("ip", "route", "replace", f"10.244.{other[1:]}.0/24", "via", address_of(other))
                self.wait("the node", lambda: name in self.ready_nodes())
        else:
            raise ValueError(line)


def main(folder: str) -> None:
    for tool in ("/usr/sbin", "/sbin"):
        os.environ["PATH"] += f":{tool}"
    inside = Inside(Path(folder))
    inside.up()
    print(json.dumps({"port": inside.port}), flush=True)
    for line in sys.stdin:
        try:
            inside.obey(line.strip())
            print("done", flush=True)
        except Exception as error:
            print(f"failed: {error!r}", flush=True)


if __name__ == "__main__":
    assert shutil.which("nsenter")
    main(sys.argv[1])
