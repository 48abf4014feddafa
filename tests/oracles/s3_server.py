"""A server of PyPI's `moto` that checks the signatures of requests to S3, for tests of our client.

    s3_server.py

Prints one line of JSON: {"port", "tls_port", "pin", "ca_bundle", "bucket", "unconditional_bucket", "access_key",
"secret_key"}. Ends when its standard input does."""
import base64
import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading

# Three calls without a signature, to make a user; from then on everything is checked.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "3"

import boto3  # noqa: E402
from moto.s3.responses import S3Response  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402
from werkzeug.datastructures import Headers  # noqa: E402

BUCKET = "flotilla-test"
UNCONDITIONAL = "flotilla-unconditional"  # takes no notice of conditions, as older servers of this API do
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


def ignore_conditions() -> None:
    put_object = S3Response.put_object

    def put(response: S3Response):
        if response.bucket_name == UNCONDITIONAL:
            response.headers = Headers(list(response.headers.items()))
            for name in ("If-Match", "If-None-Match"):
                response.headers.remove(name)
        return put_object(response)

    S3Response.put_object = put


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve_tls(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """Takes TLS off and passes the rest on."""
    def serve(raw: socket.socket) -> None:
        try:
            client = context.wrap_socket(raw, server_side=True)
        except OSError:  # a client that does not trust us
            return
        server = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=pump, args=(client, server), daemon=True).start()
        pump(server, client)

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def make_certificate(folder: str) -> tuple[str, str]:
    certificate, key = f"{folder}/certificate.pem", f"{folder}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return certificate, key


def pin_of(certificate: str) -> str:
    key = subprocess.run(["openssl", "x509", "-in", certificate, "-pubkey", "-noout"], check=True, capture_output=True).stdout
    der = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "DER"], input=key, check=True, capture_output=True).stdout
    return "sha256//" + base64.b64encode(hashlib.sha256(der).digest()).decode()


def main() -> None:
    ignore_conditions()
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
    iam = boto3.client("iam", aws_access_key_id="none", aws_secret_access_key="none", **endpoint)
    iam.create_user(UserName="tester")
    key = iam.create_access_key(UserName="tester")["AccessKey"]
    iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    s3 = boto3.client("s3", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"], **endpoint)
    for bucket in (BUCKET, UNCONDITIONAL):
        s3.create_bucket(Bucket=bucket)
    folder = tempfile.TemporaryDirectory()
    certificate, secret = make_certificate(folder.name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, secret)
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    threading.Thread(target=serve_tls, args=(listener, context, port), daemon=True).start()
    print(json.dumps({"port": port, "tls_port": listener.getsockname()[1], "pin": pin_of(certificate), "ca_bundle": certificate,
                      "bucket": BUCKET, "unconditional_bucket": UNCONDITIONAL, "access_key": key["AccessKeyId"], "secret_key": key["SecretAccessKey"]}), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
