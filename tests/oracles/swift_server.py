"""OpenStack's Swift with its s3api, from PyPI, in one folder: a server that is not of the family of moto.

    swift_server.py FOLDER      FOLDER is on a file system with extended attributes

Prints one line of JSON: {"port", "bucket", "access_key", "secret_key"}. Ends when its standard input does."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

BIN = pathlib.Path(sys.executable).parent
BUCKET = "flotilla-test"
ACCESS, SECRET = "test:tester", "testing"
SERVERS = ("object", "container", "account")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def configure(folder: pathlib.Path, ports: dict[str, int]) -> None:
    common = f"[DEFAULT]\nbind_ip = 127.0.0.1\nworkers = 0\nuser = {os.environ.get('USER', 'root')}\nswift_dir = {folder}\n" \
             f"devices = {folder}/devices\nmount_check = false\nlog_level = WARNING\n"
    for name in SERVERS:
        (folder / f"{name}.conf").write_text(f"{common}bind_port = {ports[name]}\n[pipeline:main]\npipeline = {name}-server\n"
                                             f"[app:{name}-server]\nuse = egg:swift#{name}\n")
        ring = [BIN / "swift-ring-builder", folder / f"{name}.builder"]
        for arguments in (["create", "4", "1", "0"], ["add", f"r1z1-127.0.0.1:{ports[name]}/d1", "1"], ["rebalance"]):
            subprocess.run([*ring, *arguments], check=True, capture_output=True)
    (folder / "devices/d1").mkdir(parents=True)
    (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = a\nswift_hash_path_prefix = b\n")
    (folder / "proxy.conf").write_text(
        f"{common}bind_port = {ports['proxy']}\n[pipeline:main]\n"
        "pipeline = catch_errors gatekeeper healthcheck cache listing_formats bulk s3api tempauth slo dlo versioned_writes "
        "proxy-server\n[app:proxy-server]\nuse = egg:swift#proxy\nallow_account_management = true\naccount_autocreate = true\n"
        f"[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = {SECRET} .admin\n"
        "[filter:s3api]\nuse = egg:swift#s3api\ns3_acl = false\nlocation = us-east-1\nratelimit_as_client_error = true\n"
        + "".join(f"[filter:{name}]\nuse = egg:swift#{name.replace('cache', 'memcache')}\n" for name in (
            "catch_errors", "gatekeeper", "healthcheck", "cache", "listing_formats", "bulk", "slo", "dlo", "versioned_writes")))


def main() -> None:
    folder = pathlib.Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    ports = dict(zip((*SERVERS, "proxy"), free_ports(4)))
    configure(folder, ports)
    environment = dict(os.environ, SWIFT_DIR=str(folder))
    log = open(folder / "log", "ab")
    processes = []
    try:
        for name in (*SERVERS, "proxy"):
            processes.append(subprocess.Popen([BIN / f"swift-{name}-server", folder / f"{name}.conf", "-v"], env=environment,
                                              stdout=log, stderr=log))
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{ports['proxy']}/healthcheck", timeout=5)
                break
            except OSError:
                if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                    sys.exit((folder / "log").read_text()[-4000:])
                time.sleep(0.1)
        import boto3
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{ports['proxy']}", region_name="us-east-1", aws_access_key_id=ACCESS,
                     aws_secret_access_key=SECRET).create_bucket(Bucket=BUCKET)
        print(json.dumps({"port": ports["proxy"], "bucket": BUCKET, "access_key": ACCESS, "secret_key": SECRET}), flush=True)
        sys.stdin.read()
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()


if __name__ == "__main__":
    main()
