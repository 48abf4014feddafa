"""A server of PyPI's `moto` that checks the signatures of requests to S3, for tests of our client.

    s3_server.py

Prints one line of JSON: {"port", "access_key", "secret_key", "bucket"}. Ends when its standard input does."""
import json
import os
import sys

# Three calls without a signature, to make a user; from then on everything is checked.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "3"

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

BUCKET = "flotilla-test"
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


def main() -> None:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
    iam = boto3.client("iam", aws_access_key_id="none", aws_secret_access_key="none", **endpoint)
    iam.create_user(UserName="tester")
    key = iam.create_access_key(UserName="tester")["AccessKey"]
    iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    s3 = boto3.client("s3", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"], **endpoint)
    s3.create_bucket(Bucket=BUCKET)
    print(json.dumps({"port": port, "access_key": key["AccessKeyId"], "secret_key": key["SecretAccessKey"], "bucket": BUCKET}),
          flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
