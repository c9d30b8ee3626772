"""Certificates that tests make with openssl."""

import subprocess

EC = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


def openssl(*words, **more):
    return subprocess.run(["openssl", *words], check=True, capture_output=True, **more).stdout


def make_authority(folder):
    """An authority: its certificate in `ca.pem`."""
    ca = ["-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-subj", "/CN=authority"]
    openssl("req", "-x509", "-newkey", *EC, "-nodes", "-days", "2", *ca)


def make_certificate(folder, name, subject, *extensions):
    """A key, and a certificate that the authority of the folder has signed."""
    key, request, certificate = (folder / f"{name}.{kind}" for kind in ["key", "csr", "pem"])
    openssl("req", "-newkey", *EC, "-nodes", "-keyout", key, "-subj", subject, "-out", request)
    text = folder / f"{name}.txt"
    text.write_text("\n".join(["basicConstraints=CA:FALSE", *extensions]))
    authority = ["-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial"]
    openssl("x509", "-req", "-in", request, *authority, "-days", "2", "-extfile", text, "-out", certificate)
