"""Requests to S3 that PyPI's `botocore` signed, in headers and in URLs, for tests of our verification.

    sigv4_oracle.py COUNT

Prints a JSON list of {"method", "target", "headers", "secret_key"}."""
import json
import random
import sys
import urllib.parse

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

CHARACTERS = "abcXYZ019 -._~/+&=%$@:,;!*'()[]é€\t"


def word(chance: random.Random, alphabet: str = CHARACTERS) -> str:
    return "".join(chance.choice(alphabet) for _ in range(chance.randrange(1, 12)))


def signed(chance: random.Random) -> dict:
    secret = word(chance, "abc/+019")
    token = word(chance, "abc/+=019") if chance.random() < 0.3 else None
    path = "/" + urllib.parse.quote(word(chance), safe="/~")
    query = {word(chance): word(chance) if chance.random() < 0.8 else "" for _ in range(chance.randrange(4))}
    url = f"http://bucket.example.org:9000{path}"
    if query:
        url += "?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote, safe="~")
    in_url = chance.random() < 0.4
    body = b"" if in_url else word(chance).encode()
    request = AWSRequest(method=chance.choice(["GET", "PUT", "DELETE", "HEAD"]), url=url, data=body)
    for name in chance.sample(["Range", "If-Match", "Content-Type", "X-Amz-Meta-Note"], chance.randrange(3)):
        request.headers[name] = "  ".join(word(chance, "abc019=-") for _ in range(3))
    auth = S3SigV4QueryAuth if in_url else S3SigV4Auth
    auth(Credentials("AKID", secret, token), "s3", "eu-west-1").add_auth(request)
    ready = request.prepare()
    parts = urllib.parse.urlsplit(ready.url)
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in ready.headers.items()}
    headers["Host"] = parts.netloc
    return {"method": ready.method, "target": parts.path + ("?" + parts.query if parts.query else ""), "headers": headers,
            "secret_key": secret}


def main() -> None:
    chance = random.Random(7)
    requests = [signed(chance) for _ in range(int(sys.argv[1]))]
    print(json.dumps(requests))


if __name__ == "__main__":
    main()
