"""`flotilla hub serve` used by what we did not write: boto3, rclone, curl; and by hostile clients."""
import base64
import concurrent.futures
import datetime
import hashlib
import http.client
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from unittest import mock

from fleet import BIN, ROOT, VENV

if pathlib.Path(sys.prefix) != VENV:  # boto3 is in there
    if not (VENV / "bin/python").exists() and "FLOTILLA_VENV" not in os.environ:
        print("skipped: ./run setup installs boto3 and rclone")
        sys.exit(77)
    os.execv(VENV / "bin/python", [VENV / "bin/python", *sys.argv])

import boto3  # noqa: E402
import botocore.auth  # noqa: E402
from boto3.s3.transfer import TransferConfig  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

for variable in [name for name in os.environ if name.startswith("AWS_")]:  # they would have a say
    del os.environ[variable]

OPERATIONS, RULES = ROOT / "docs/operations.md", ROOT / "configs/flotilla-hub.rules.yml"
WORKER = "3df50384cff00060551dc6f0c5a88cdf"
GROUP = f"demo/rollouts/0000000001/{WORKER}"
MIB = 1 << 20


class Hub:
    def __init__(self, *arguments: str, folder: pathlib.Path):
        self.folder = folder
        self.log = open(folder.parent / "hub.log", "a+")
        self.process = subprocess.Popen([BIN / "flotilla", "hub", "serve", folder, "--create", "--port", "0", "--metrics-port", "0",
                                         *arguments], stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        self.scheme, self.port, self.metrics_port = re.search(r"at (https?)://[^ ]*:(\d+); metrics at .*:(\d+)/", line).groups()
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self.certificate = self.pin = None
        if self.scheme == "https":
            self.certificate, self.pin = re.search(r"certificate (.*), pin (\S+)$", self.process.stdout.readline()).groups()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def token(self, scope: str, *arguments: str) -> tuple[str, str]:
        added = subprocess.run([BIN / "flotilla", "hub", "token", "add", self.folder, scope, *arguments], capture_output=True,
                               text=True, check=True).stdout
        return tuple(line.split("=", 1)[1] for line in added.splitlines())

    def client(self, token: tuple[str, str], **config):
        settings = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}} | config
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=token[0],
                            aws_secret_access_key=token[1], verify=self.certificate, config=Config(**settings))

    def connect(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", int(self.port)), timeout=60)
        if not self.certificate:
            return plain
        return ssl.create_default_context(cafile=self.certificate).wrap_socket(plain, server_hostname="localhost")

    def raw(self, data: bytes) -> bytes:
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def metrics(self, path: str = "/metrics") -> str:
        connection = http.client.HTTPConnection("127.0.0.1", int(self.metrics_port), timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def resident_mib(self) -> float:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024

    def logged(self) -> str:
        self.log.seek(0)
        return self.log.read()


def read_all(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except (ConnectionResetError, ssl.SSLError):
        pass
    return data


def code_of(call) -> str:
    try:
        call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "no error"


def clock_off(minutes: int):
    """What botocore signs with."""
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) + datetime.timedelta(minutes=minutes)
    return mock.patch.object(botocore.auth, "get_current_datetime", lambda *_: now)


def content(size: int) -> bytes:
    return hashlib.shake_256(str(size).encode()).digest(size)


class Tester:
    def __init__(self, hub: Hub):
        self.hub = hub
        self.learner_token = hub.token("ada", "--role", "learner", "--rate", "100000")
        self.worker_token = hub.token("ada/demo", "--worker", WORKER, "--rate", "100000", "--object-mib", "64")
        self.learner = hub.client(self.learner_token)
        self.worker = hub.client(self.worker_token)

    def objects_go_up_and_come_down(self):
        for size in (0, 1, 1000, 3 * MIB + 1):
            data = content(size)
            etag = self.learner.put_object(Bucket="ada", Key=f"demo/size/{size}", Body=data)["ETag"]
            assert etag == f'"{hashlib.sha256(data).hexdigest()}"'
            got = self.worker.get_object(Bucket="ada", Key=f"demo/size/{size}")
            assert got["Body"].read() == data and got["ETag"] == etag and got["ContentLength"] == size
            head = self.worker.head_object(Bucket="ada", Key=f"demo/size/{size}")
            assert head["ContentLength"] == size and head["ETag"] == etag
            assert abs((datetime.datetime.now(datetime.timezone.utc) - head["LastModified"]).total_seconds()) < 60
            assert (self.hub.folder / f"ada/demo/size/{size}").read_bytes() == data
        for algorithm in ("CRC32", "SHA1", "SHA256"):
            self.learner.put_object(Bucket="ada", Key="demo/sum", Body=b"data", ChecksumAlgorithm=algorithm)
        assert code_of(lambda: self.worker.get_object(Bucket="ada", Key="demo/none")) == "NoSuchKey"
        assert code_of(lambda: self.worker.head_object(Bucket="ada", Key="demo/none")) == "404"

    def ranges_are_sections(self):
        data = content(100_000)
        self.learner.put_object(Bucket="ada", Key="demo/ranged", Body=data)
        for text, expected in (("bytes=0-0", data[:1]), ("bytes=500-999", data[500:1000]), ("bytes=99990-", data[99990:]),
                               ("bytes=-7", data[-7:])):
            got = self.worker.get_object(Bucket="ada", Key="demo/ranged", Range=text)
            assert got["Body"].read() == expected and got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert code_of(lambda: self.worker.get_object(Bucket="ada", Key="demo/ranged", Range="bytes=100000-")) == "InvalidRange"

    def listings_of_more_than_a_thousand_keys_are_whole(self):
        names = [f"demo/list/{n // 50:03}/{n:05}" for n in range(2345)]
        for name in names:
            path = self.hub.folder / "ada" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        for operation in ("list_objects_v2", "list_objects"):
            pages = list(self.worker.get_paginator(operation).paginate(Bucket="ada", Prefix="demo/list/"))
            assert len(pages) == 3
            assert [one["Key"] for page in pages for one in page["Contents"]] == names
            pages = list(self.worker.get_paginator(operation).paginate(Bucket="ada", Prefix="demo/list/", Delimiter="/",
                                                                       PaginationConfig={"PageSize": 10}))
            assert [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", [])] \
                == [f"demo/list/{n:03}/" for n in range(47)]
        after = self.worker.list_objects_v2(Bucket="ada", Prefix="demo/list/", StartAfter=names[-3])
        assert [one["Key"] for one in after["Contents"]] == names[-2:]
        assert self.worker.list_objects_v2(Bucket="ada", Prefix="demo/list/nothing").get("KeyCount") == 0
        for start in range(0, len(names), 1000):
            some = [{"Key": name} for name in names[start:start + 1000]]
            gone = self.learner.delete_objects(Bucket="ada", Delete={"Objects": some})
            assert gone["Deleted"] == some and "Errors" not in gone
        assert self.worker.list_objects_v2(Bucket="ada", Prefix="demo/list/")["KeyCount"] == 0

    def parts_become_one_object(self):
        data = content(20 * MIB + 5)
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self.learner.upload_file(file.name, "ada", "demo/parts", Config=TransferConfig(multipart_threshold=MIB))
            self.worker.download_file("ada", "demo/parts", file.name + ".down")
        down = pathlib.Path(file.name + ".down")
        assert down.read_bytes() == data
        down.unlink()
        assert self.worker.head_object(Bucket="ada", Key="demo/parts")["ETag"] == f'"{hashlib.sha256(data).hexdigest()}"'
        upload = self.learner.create_multipart_upload(Bucket="ada", Key="demo/given-up")["UploadId"]
        part = {"Bucket": "ada", "Key": "demo/given-up", "UploadId": upload}
        etag = self.learner.upload_part(**part, PartNumber=3, Body=b"three")["ETag"]
        listed = self.learner.list_parts(**part)["Parts"]
        assert [(one["PartNumber"], one["ETag"], one["Size"]) for one in listed] == [(3, etag, 5)]
        wrong = {"Parts": [{"PartNumber": 4, "ETag": etag}]}
        assert code_of(lambda: self.learner.complete_multipart_upload(**part, MultipartUpload=wrong)) == "InvalidPart"
        self.learner.abort_multipart_upload(**part)
        assert code_of(lambda: self.learner.list_parts(**part)) == "NoSuchUpload"
        upload = self.worker.create_multipart_upload(Bucket="ada", Key=f"{GROUP}/parts")["UploadId"]
        part = {"Bucket": "ada", "Key": f"{GROUP}/parts", "UploadId": upload}
        etag = self.worker.upload_part(**part, PartNumber=1, Body=b"one")["ETag"]
        self.worker.put_object(Bucket="ada", Key=f"{GROUP}/parts", Body=b"first")
        whole = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        assert code_of(lambda: self.worker.complete_multipart_upload(**part, MultipartUpload=whole)) == "PreconditionFailed"

    def an_object_is_copied_and_open_uploads_are_listed(self):
        self.learner.put_object(Bucket="ada", Key="demo/copy/a", Body=b"data")
        done = self.learner.copy_object(Bucket="ada", Key="demo/copy/b", CopySource={"Bucket": "ada", "Key": "demo/copy/a"})
        assert done["CopyObjectResult"]["ETag"] == f'"{hashlib.sha256(b"data").hexdigest()}"'
        self.learner.copy({"Bucket": "ada", "Key": "demo/copy/b"}, "ada", "demo/copy/c")
        assert self.worker.get_object(Bucket="ada", Key="demo/copy/c")["Body"].read() == b"data"
        for source in ("demo/copy/a", "other/head"):
            assert code_of(lambda: self.worker.copy_object(Bucket="ada", Key=f"{GROUP}/c",
                                                           CopySource={"Bucket": "ada", "Key": source})) == "AccessDenied", source
        upload = self.learner.create_multipart_upload(Bucket="ada", Key="demo/open")["UploadId"]
        listed = self.learner.list_multipart_uploads(Bucket="ada", Prefix="demo/")["Uploads"]
        assert [(one["Key"], one["UploadId"]) for one in listed] == [("demo/open", upload)]
        others = self.worker.list_multipart_uploads(Bucket="ada").get("Uploads", [])
        assert "demo/open" not in [one["Key"] for one in others], "a token sees its own"
        self.learner.abort_multipart_upload(Bucket="ada", Key="demo/open", UploadId=upload)

    def urls_that_were_signed_in_advance_need_no_token(self):
        context = ssl.create_default_context(cafile=self.hub.certificate) if self.hub.certificate else None

        def ask(url: str, method: str, data: bytes | None = None) -> tuple[int, bytes]:
            try:
                with urllib.request.urlopen(urllib.request.Request(url, data, method=method), context=context) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        def signed(client, operation: str, key: str, seconds: int = 60) -> str:
            return client.generate_presigned_url(operation, {"Bucket": "ada", "Key": key}, ExpiresIn=seconds)

        modern = self.hub.client(self.learner_token, signature_version="s3v4")
        assert ask(signed(modern, "put_object", "demo/presigned"), "PUT", b"by url")[0] == 200
        url = signed(modern, "get_object", "demo/presigned")
        assert ask(url, "GET") == (200, b"by url")
        assert ask(url.replace("presigned", "ranged"), "GET")[0] == 403
        assert ask(url, "DELETE")[0] == 403
        with clock_off(minutes=-60):
            old = signed(modern, "get_object", "demo/presigned")
        status, text = ask(old, "GET")
        assert status == 403 and b"expired" in text, text
        worker = self.hub.client(self.worker_token, signature_version="s3v4")
        assert ask(signed(worker, "put_object", "demo/head"), "PUT", b"mine")[0] == 403

    def of_twelve_writers_exactly_one_wins(self):
        first = self.learner.put_object(Bucket="ada", Key="demo/head", Body=b"0")["ETag"]
        clients = [self.hub.client(self.learner_token) for _ in range(12)]

        def write(number: int, key: str, **condition) -> str:
            return code_of(lambda: clients[number].put_object(Bucket="ada", Key=key, Body=b"writer %d" % number, **condition))

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            for key, condition in (("demo/head", {"IfMatch": first}), ("demo/fresh", {"IfNoneMatch": "*"})):
                codes = list(pool.map(lambda number: write(number, key, **condition), range(12)))
                assert sorted(codes) == ["PreconditionFailed"] * 11 + ["no error"], codes
                winner = codes.index("no error")
                assert self.learner.get_object(Bucket="ada", Key=key)["Body"].read() == b"writer %d" % winner
        assert code_of(lambda: self.learner.put_object(Bucket="ada", Key="demo/no", Body=b"", IfMatch=first)) == "NoSuchKey"
        assert code_of(lambda: self.learner.get_object(Bucket="ada", Key="demo/head", IfNoneMatch="*")) == "304"

    def a_worker_writes_its_own_and_once(self):
        self.worker.put_object(Bucket="ada", Key=f"{GROUP}/g", Body=b"group")
        assert code_of(lambda: self.worker.put_object(Bucket="ada", Key=f"{GROUP}/g", Body=b"other")) == "PreconditionFailed"
        for _ in range(2):
            self.worker.put_object(Bucket="ada", Key=f"demo/workers/{WORKER}/status", Body=b"{}")
        for key in ("demo/head", "demo/weights/0000000001/delta", "demo/rollouts/0000000001/other/g", "other/head"):
            assert code_of(lambda: self.worker.put_object(Bucket="ada", Key=key, Body=b"x")) == "AccessDenied", key
        assert code_of(lambda: self.worker.delete_object(Bucket="ada", Key=f"{GROUP}/g")) == "AccessDenied"
        assert code_of(lambda: self.worker.get_object(Bucket="ada", Key="other/head")) == "AccessDenied"
        assert code_of(lambda: self.worker.list_objects_v2(Bucket="ada")) == "AccessDenied"
        gone = self.worker.delete_objects(Bucket="ada", Delete={"Objects": [{"Key": f"{GROUP}/g"}]})
        assert gone["Errors"][0]["Code"] == "AccessDenied"
        assert [one["Name"] for one in self.worker.list_buckets()["Buckets"]] == ["ada"]

    def a_claim_is_the_first_ones(self):
        other_id = "f" * 32
        other = self.hub.client(self.hub.token("ada/demo", "--worker", other_id, "--rate", "100000"))
        claim = "demo/claims/0000000000/0000000007.0000000000"
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            codes = list(pool.map(lambda client: code_of(lambda: client.put_object(Bucket="ada", Key=claim, Body=b"mine",
                                                                                   IfNoneMatch="*")), (self.worker, other)))
        assert sorted(codes) == ["PreconditionFailed", "no error"], codes
        etag = other.get_object(Bucket="ada", Key=claim)["ETag"]
        for condition in ({}, {"IfMatch": etag}):
            assert code_of(lambda: other.put_object(Bucket="ada", Key=claim, Body=b"x", **condition)) == "PreconditionFailed"
        other.put_object(Bucket="ada", Key=claim[:-1] + "1", Body=b"the next lease", IfNoneMatch="*")
        assert code_of(lambda: other.put_object(Bucket="ada", Key=f"{claim}.{WORKER}", Body=b"")) == "AccessDenied"
        other.put_object(Bucket="ada", Key=f"{claim}.{other_id}", Body=b"", IfNoneMatch="*")

    def a_wrong_secret_or_clock_is_refused(self):
        wrong = self.hub.client((self.worker_token[0], "x" * 43))
        assert code_of(lambda: wrong.get_object(Bucket="ada", Key="demo/head")) == "SignatureDoesNotMatch"
        nobody = self.hub.client(("FHNOBODYNOBODYNOBODY", "x" * 43))
        assert code_of(lambda: nobody.get_object(Bucket="ada", Key="demo/head")) == "InvalidAccessKeyId"
        for minutes in (-20, 20):
            with clock_off(minutes):
                assert code_of(lambda: self.worker.get_object(Bucket="ada", Key="demo/head")) == "RequestTimeTooSkewed"
        token = self.hub.token("ada/demo", "--role", "reader")
        reader = self.hub.client(token)
        reader.get_object(Bucket="ada", Key="demo/head")
        subprocess.run([BIN / "flotilla", "hub", "token", "revoke", self.hub.folder, token[0]], check=True, capture_output=True)
        assert code_of(lambda: reader.get_object(Bucket="ada", Key="demo/head")) == "InvalidAccessKeyId"
        listed = subprocess.run([BIN / "flotilla", "hub", "token", "list", self.hub.folder], capture_output=True, text=True).stdout
        assert re.search(f"{token[0]} .*revoked", listed) and token[1] not in listed

    def a_wait_ends_with_the_next_head(self):
        etag = self.learner.put_object(Bucket="ada", Key="demo/head", Body=b"1")["ETag"]
        self.worker.meta.events.register("before-sign.s3.GetObject",
                                         lambda request, **_: request.headers.add_header("Prefer", "wait=30"), unique_id="wait")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: self.worker.get_object(Bucket="ada", Key="demo/head", IfNoneMatch=etag)["Body"].read())
            deadline = time.monotonic() + 30
            while "flotilla_hub_waiting 1\n" not in self.hub.metrics():
                assert time.monotonic() < deadline and not waiting.done()
            (self.hub.folder / "ada/demo/new").write_bytes(b"2")  # a learner on the folder itself
            os.replace(self.hub.folder / "ada/demo/new", self.hub.folder / "ada/demo/head")
            assert waiting.result(20) == b"2"
        self.worker.meta.events.unregister("before-sign.s3.GetObject", unique_id="wait")

    def memory_does_not_grow_with_objects(self):
        before = self.hub.resident_mib()
        size = 256 * MIB
        with tempfile.NamedTemporaryFile() as file:
            file.write(content(MIB) * 256)
            file.flush()
            for mode in (MIB, size + 1):  # in parts, and as one
                self.learner.upload_file(file.name, "ada", "demo/large",
                                         Config=TransferConfig(multipart_threshold=mode, max_concurrency=2))
                with open(os.devnull, "wb") as nowhere:
                    self.worker.download_fileobj("ada", "demo/large", nowhere, Config=TransferConfig(use_threads=False))
        grown = self.hub.resident_mib() - before
        print(f"  peak memory grew by {grown:.1f} MiB over objects of 256 MiB")
        assert grown < 48, grown
        self.learner.delete_object(Bucket="ada", Key="demo/large")

    def rclone_copies_lists_and_checks(self):
        if not shutil.which("rclone"):
            print("  skipped: no rclone here")
            return
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "source"
            for number in range(30):
                path = source / f"d{number % 3}" / f"f{number}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content(1000 * number))
            (source / "large").write_bytes(content(12 * MIB))
            environment = dict(os.environ, RCLONE_CONFIG=str(pathlib.Path(folder) / "none"), RCLONE_CONFIG_HUB_TYPE="s3",
                               RCLONE_CONFIG_HUB_PROVIDER="Other", RCLONE_CONFIG_HUB_ENDPOINT=self.hub.url,
                               RCLONE_CONFIG_HUB_ACCESS_KEY_ID=self.learner_token[0],
                               RCLONE_CONFIG_HUB_SECRET_ACCESS_KEY=self.learner_token[1])

            def rclone(*arguments: str) -> str:
                trust = ["--ca-cert", self.hub.certificate] if self.hub.certificate else []
                done = subprocess.run(["rclone", *arguments, *trust, "--retries", "1"], env=environment, capture_output=True,
                                      text=True)
                assert done.returncode == 0, done.stderr
                return done.stdout

            rclone("copy", str(source), "hub:ada/demo/rclone", "--s3-upload-cutoff", "8M")
            assert sorted(rclone("lsf", "-R", "--files-only", "hub:ada/demo/rclone").split()) \
                == sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())
            assert rclone("lsf", "hub:ada/demo/rclone").split() == ["d0/", "d1/", "d2/", "large"]
            rclone("check", "--download", str(source), "hub:ada/demo/rclone")
            rclone("copy", "hub:ada/demo/rclone", str(pathlib.Path(folder) / "back"))
            assert (pathlib.Path(folder) / "back/large").read_bytes() == content(12 * MIB)
            rclone("moveto", "hub:ada/demo/rclone/d1/f1", "hub:ada/demo/rclone/moved")
            rclone("copyto", "hub:ada/demo/rclone/large", "hub:ada/demo/rclone/again")
            assert self.worker.get_object(Bucket="ada", Key="demo/rclone/moved")["Body"].read() == content(1000)
            assert self.worker.head_object(Bucket="ada", Key="demo/rclone/again")["ContentLength"] == 12 * MIB
            assert rclone("lsf", "hub:ada/demo/rclone/d1").split() == [f"f{number}" for number in sorted(
                (f for f in range(30) if f % 3 == 1 and f != 1), key=str)]
            rclone("cleanup", "hub:ada")
            rclone("delete", "hub:ada/demo/rclone")
            assert rclone("lsf", "-R", "hub:ada/demo/rclone") == ""

    def hostile_requests_have_no_effect(self):
        before = sorted(path for path in self.hub.folder.rglob("*"))
        for path in ("/ada/../../etc/passwd", "/ada/%2e%2e/%2e%2e/etc/passwd", "/ada/demo%2Fhead", "//etc/passwd", "/@store/lock",
                     "/ada/demo/\\..\\x", "/%00", "/ada/demo/head%0d%0aX:%20y", "*", "http://elsewhere/ada/demo/head"):
            answer = self.hub.raw(f"GET {path} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n".encode())
            assert re.match(rb"HTTP/1.1 40[03] ", answer), (path, answer)
        signed = self.hub.client(self.worker_token)
        for key in ("demo/../other/head", "demo/./head", "demo//head", "demo/h\u00e9"):
            assert code_of(lambda: signed.get_object(Bucket="ada", Key=key)) in ("InvalidURI", "AccessDenied", "400"), key
        flood = "".join(f"X-{number}: {number}\r\n" for number in range(200))
        assert self.hub.raw(f"GET /ada/demo/head HTTP/1.1\r\nHost: hub\r\n{flood}\r\n".encode()).startswith(b"HTTP/1.1 431 ")
        assert self.hub.raw(b"GET / HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")
        assert self.hub.raw(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        too_large = self.hub.raw(b"PUT /ada/demo/head HTTP/1.1\r\nHost: hub\r\nContent-Length: 10000000000\r\n\r\n" + b"x" * MIB)
        assert too_large.startswith(b"HTTP/1.1 403 "), "nobody signed it"
        modern = self.hub.client(self.worker_token, signature_version="s3v4")
        huge = modern.generate_presigned_url("put_object", {"Bucket": "ada", "Key": f"{GROUP}/huge"}, ExpiresIn=60)
        head = f"PUT {huge[len(self.hub.url):]} HTTP/1.1\r\nHost: 127.0.0.1:{self.hub.port}\r\n"
        answer = self.hub.raw(f"{head}Content-Length: 10000000000\r\n\r\n".encode() + b"x" * MIB)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"EntityTooLarge" in answer, answer
        for ending in (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                       b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"):
            answer = self.hub.raw(b"PUT /ada/demo/head HTTP/1.1\r\nHost: hub\r\n" + ending)
            assert re.match(rb"HTTP/1.1 4\d\d ", answer), answer
        outside = self.hub.folder.parent / "outside"
        outside.write_bytes(b"secret")
        link = self.hub.folder / "ada/demo/link"
        link.symlink_to(outside)
        assert code_of(lambda: self.learner.get_object(Bucket="ada", Key="demo/link")) == "AccessDenied"
        assert code_of(lambda: self.learner.put_object(Bucket="ada", Key="demo/link", Body=b"x")) == "AccessDenied"
        assert outside.read_bytes() == b"secret"
        link.unlink()
        assert sorted(path for path in self.hub.folder.rglob("*")) == before

    def one_that_trickles_is_left_alone_and_others_are_served(self):
        slow = [self.hub.connect() for _ in range(30)]
        for connection in slow:
            connection.sendall(b"GET /ada/demo/head HTTP/1.1\r\nX-Slow: ")
        start = time.monotonic()
        assert self.worker.get_object(Bucket="ada", Key="demo/head")["Body"].read() == b"2"
        assert time.monotonic() - start < 5
        for connection in slow:  # a head has 15 s
            assert read_all(connection) == b""
        assert time.monotonic() - start < 40

    def what_was_refused_is_logged_once_a_minute_and_without_secrets(self):
        wrong = self.hub.client((self.worker_token[0], "y" * 43))
        for _ in range(50):
            code_of(lambda: wrong.get_object(Bucket="ada", Key="demo/head"))
        log = self.hub.logged()
        assert 1 <= log.count("SignatureDoesNotMatch") <= 3, log
        for secret in (self.worker_token[1], self.learner_token[1], "X-Amz-Signature", "Signature="):
            assert secret not in log, secret
        token = self.hub.token("ada/demo")
        worker = self.hub.client(token)
        for _ in range(20):
            worker.delete_objects(Bucket="ada", Delete={"Objects": [{"Key": "demo/head"}, {"Key": "demo/none"}]})
        assert 1 <= self.hub.logged().count(f"token {token[0]} (127.0.0.1): POST /ada: 403 AccessDenied: demo/head: ") <= 2
        metrics = self.hub.metrics()
        for name in re.findall(r"flotilla_hub_\w+", OPERATIONS.read_text() + RULES.read_text()):
            assert name in metrics, f"the operator is told of {name}"
        assert int(re.search(r'flotilla_hub_refused_total{code="SignatureDoesNotMatch"} (\d+)', metrics).group(1)) >= 50
        assert self.hub.metrics("/health") == "ok\n"


TESTS = ["objects_go_up_and_come_down", "ranges_are_sections", "listings_of_more_than_a_thousand_keys_are_whole",
         "parts_become_one_object", "an_object_is_copied_and_open_uploads_are_listed", "urls_that_were_signed_in_advance_need_no_token", "of_twelve_writers_exactly_one_wins",
         "a_worker_writes_its_own_and_once", "a_claim_is_the_first_ones",
         "a_wrong_secret_or_clock_is_refused", "a_wait_ends_with_the_next_head",
         "memory_does_not_grow_with_objects", "rclone_copies_lists_and_checks", "hostile_requests_have_no_effect",
         "one_that_trickles_is_left_alone_and_others_are_served",
         "what_was_refused_is_logged_once_a_minute_and_without_secrets"]


def a_certificate_is_pinned(folder: pathlib.Path):
    with Hub("--self-signed", folder=folder) as hub:
        pin, token = hub.pin, hub.token("ada", "--role", "learner")
        tls = hub.connect()
        assert tls.version() == "TLSv1.3"
        tls.close()
        older = ssl.create_default_context(cafile=hub.certificate)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            older.wrap_socket(socket.create_connection(("127.0.0.1", int(hub.port))), server_hostname="localhost")
            raise AssertionError("TLS 1.2 was accepted")
        except ssl.SSLError:
            pass
        public = subprocess.run(f"openssl x509 -in '{hub.certificate}' -pubkey -noout | openssl pkey -pubin -outform der",
                                shell=True, capture_output=True, check=True).stdout
        assert pin == "sha256//" + base64.b64encode(hashlib.sha256(public).digest()).decode()
        assert oct(os.stat(pathlib.Path(hub.certificate).with_name("certificate-key.pem")).st_mode)[-3:] == "600"
        hub.client(token).put_object(Bucket="ada", Key="demo/pinned", Body=b"x")
    with Hub("--self-signed", folder=folder) as hub:
        assert hub.pin == pin, "a new start keeps the certificate"
        assert hub.client(token).get_object(Bucket="ada", Key="demo/pinned")["Body"].read() == b"x"


def a_stop_lets_requests_end(folder: pathlib.Path):
    with Hub(folder=folder) as hub:
        client = hub.client(hub.token("ada", "--role", "learner"), signature_version="s3v4")
        url = client.generate_presigned_url("put_object", {"Bucket": "ada", "Key": "demo/late"}, ExpiresIn=60)
        with hub.connect() as idle, hub.connect() as busy:
            busy.sendall(f"PUT {url[len(hub.url):]} HTTP/1.1\r\nHost: 127.0.0.1:{hub.port}\r\nContent-Length: 4\r\n"
                         "Expect: 100-continue\r\n\r\n".encode())
            assert busy.recv(1000).startswith(b"HTTP/1.1 100")
            hub.process.send_signal(signal.SIGTERM)
            assert "stopping" in hub.process.stdout.readline()
            assert read_all(idle) == b"", "a connection without a request is closed"
            busy.sendall(b"late")
            assert read_all(busy).startswith(b"HTTP/1.1 200")
        assert hub.process.wait(10) == 0
        assert (hub.folder / "ada/demo/late").read_bytes() == b"late"


def more_connections_than_the_system_begins_with(folder: pathlib.Path):
    """Shells and services start programs with few handles, and allow more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        hub = Hub("--connections", "200", "--connections-per-address", "200", folder=folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with hub:
        client = hub.client(hub.token("ada", "--role", "learner"))
        connections = [hub.connect() for _ in range(100)]
        client.put_object(Bucket="ada", Key="demo/crowded", Body=b"x")
        assert "flotilla_hub_connections 101\n" in hub.metrics(), hub.metrics()
        for connection in connections:
            connection.close()


def wrong_uses_are_told(folder: pathlib.Path):
    def fails(code: int, message: str, *arguments: str):
        done = subprocess.run([BIN / "flotilla", "hub", *arguments], capture_output=True, text=True)
        assert done.returncode == code and re.search(message, done.stderr), done

    fails(1, "--create", "serve", str(folder / "none"))
    fails(2, "certificate is needed", "serve", str(folder), "--create", "--address", "0.0.0.0", "--port", "0",
          "--metrics-port", "0")
    fails(2, "worker's id", "token", "add", str(folder), "ada/demo", "--worker", "a/b")
    fails(2, "OWNER/RUN", "token", "add", str(folder), "ada/demo/x", "--role", "reader")
    fails(1, "no token", "token", "revoke", str(folder), "FHNOBODY")
    (folder / "no.pem").write_text("no")
    with Hub(folder=folder / "hub") as hub:
        fails(1, "another hub server", "serve", str(hub.folder), "--port", "0", "--metrics-port", "0")
    fails(2, "certificate", "serve", str(folder), "--cert", str(folder / "no.pem"), "--key", str(folder / "no.pem"), "--port", "0")


def main() -> int:
    wanted = sys.argv[1:]
    passed = 0
    for name, arguments in (("plain", ()), ("tls", ("--self-signed",))):
        with tempfile.TemporaryDirectory() as folder, Hub(*arguments, folder=pathlib.Path(folder) / "hub") as hub:
            tester = Tester(hub)
            for test in TESTS:
                if not wanted or test in wanted:
                    print(f"{name}: {test}", flush=True)
                    try:
                        getattr(tester, test)()
                    except BaseException:
                        print(hub.logged())
                        raise
                    passed += 1
    for test in (a_certificate_is_pinned, a_stop_lets_requests_end, more_connections_than_the_system_begins_with,
                 wrong_uses_are_told):
        if not wanted or test.__name__ in wanted:
            print(test.__name__, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                test(pathlib.Path(folder) / "hub")
            passed += 1
    print(f"{passed} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
