"""Keys, certificates and kubeconfigs of a Kubernetes of the tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "velodrome-test")])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self._write("ca", self._key, builder.sign(self._key, hashes.SHA256()))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - _DAY).not_valid_after(now + 30 * _DAY)

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        (self.folder / f"{name}.key").write_bytes(private)
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (self.folder / f"{name}.pub").write_bytes(public)

    def issue(self, name: str, user: str, group: str = "", addresses: tuple[str, ...] = ()) -> None:
        """A certificate for a user of a group, and for a server at these addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        if group:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = self._builder(x509.Name(parts), key).add_extension(usage, critical=False)
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(name, key, builder.sign(self._key, hashes.SHA256()))

    def kubeconfig(self, name: str, server: str, namespace: str = "default") -> Path:
        """The kubeconfig of a user that has a certificate."""
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(
                self.folder / "ca.crt")}}],
            "users": [{"name": name, "user": {"client-certificate": str(self.folder / f"{name}.crt"),
                                              "client-key": str(self.folder / f"{name}.key")}}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name, "namespace": namespace}}],
        }))
        return path
