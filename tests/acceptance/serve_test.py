"""`flotilla serve` and `flotilla chat` with the real model, asked by PyPI's `openai`, which we did not write."""
import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time

from fleet import BIN, VENV, packaged_model

if pathlib.Path(sys.prefix) != VENV:  # the oracles are in there
    if not (VENV / "bin/python").exists() and "FLOTILLA_VENV" not in os.environ:
        print("skipped: ./run setup installs openai and the model")
        sys.exit(77)
    os.execv(VENV / "bin/python", [VENV / "bin/python", __file__, *sys.argv[1:]])

import gguf  # noqa: E402
import openai  # noqa: E402

MODEL = "SmolLM2-135M-Instruct.Q4_1"
QUESTION = [{"role": "user", "content": "Tell me about the sea."}]


class Server:
    def __init__(self, *arguments: str, token: str = "", model: pathlib.Path | None = None):
        self.token = token
        self.process = subprocess.Popen([BIN / "flotilla", "serve", model or packaged_model(), "--port", "0", *arguments],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(re.search(r":(\d+)/v1", line).group(1))
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=token or "none", max_retries=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def raw(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> tuple[int, dict, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()

    def metrics(self) -> dict[str, float]:
        status, _, text = self.raw("GET", "/metrics", Authorization=f"Bearer {self.token}")
        assert status == 200, text
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}

    def wait_for(self, what: str, condition, seconds: float = 60):
        """Polls what another process says; the deadline is only for a failure."""
        deadline = time.monotonic() + seconds
        while not condition(self.metrics()):
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.metrics()}"
            time.sleep(0.05)

    def chat(self, **more):
        return self.client.chat.completions.create(**({"model": MODEL, "messages": QUESTION, "max_tokens": 24, "seed": 5} | more))

    def complete(self, **more):
        return self.client.completions.create(**({"model": MODEL, "prompt": "The sea is", "max_tokens": 12, "seed": 5} | more))


def raised(kind, call) -> dict:
    try:
        call()
    except kind as error:
        assert error.body["message"] and error.body["type"], error.body
        return error.body
    raise AssertionError(f"expected {kind.__name__}")


def answers_of(stream) -> tuple[dict, dict, object]:
    texts, reasons, usage = {}, {}, None
    for chunk in stream:
        if chunk.usage:
            assert not chunk.choices
            usage = chunk.usage
        for choice in chunk.choices:
            text = choice.delta.content if hasattr(choice, "delta") else choice.text
            texts[choice.index] = texts.get(choice.index, "") + (text or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage


def models_are_listed(server):
    assert [model.id for model in server.client.models.list()] == [MODEL]
    assert server.client.models.retrieve(MODEL).id == MODEL
    raised(openai.NotFoundError, lambda: server.client.models.retrieve("gpt-4"))
    assert server.raw("GET", "/health")[2] == '{"status":"ok"}'


def a_chat_is_answered_and_a_seed_repeats_it(server):
    first = server.chat()
    choice = first.choices[0]
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length", first
    assert first.usage.completion_tokens == 24 and first.usage.total_tokens == first.usage.prompt_tokens + 24, first.usage
    assert server.chat().choices[0].message.content == choice.message.content
    for seed in (0, -1, -2**63, 2**63 - 1, 2**64 - 1):
        assert server.chat(seed=seed, max_tokens=8).choices[0].message.content \
            == server.chat(seed=seed, max_tokens=8).choices[0].message.content, seed
    assert len({server.chat(seed=seed).choices[0].message.content for seed in range(4)}) == 4
    assert server.chat(max_completion_tokens=3, max_tokens=None).usage.completion_tokens == 3


def a_stream_says_the_same_in_pieces(server):
    for n in (1, 3):
        whole = server.chat(n=n)
        texts, reasons, usage = answers_of(server.chat(n=n, stream=True, stream_options={"include_usage": True}))
        assert texts == {c.index: c.message.content for c in whole.choices}, texts
        assert reasons == {c.index: c.finish_reason for c in whole.choices} and usage == whole.usage, (reasons, usage)
    whole = server.complete(n=2, echo=True)
    texts, reasons, usage = answers_of(server.complete(n=2, echo=True, stream=True))
    assert texts == {c.index: c.text for c in whole.choices} and usage is None, texts
    assert all(text.startswith("The sea is") for text in texts.values()), texts


def choices_differ_and_the_first_is_the_only_one(server):
    texts = [choice.message.content for choice in server.chat(n=4).choices]
    assert len(set(texts)) == 4 and texts[0] == server.chat().choices[0].message.content, texts


def logprobs_are_those_of_the_distribution(server):
    answer = server.chat(logprobs=True, top_logprobs=20).choices[0]
    assert answer.message.content.encode() == b"".join(bytes(token.bytes) for token in answer.logprobs.content)
    for token in answer.logprobs.content:
        top = [other.logprob for other in token.top_logprobs]
        assert len(top) == 20 and top == sorted(top, reverse=True) and token.logprob <= 0, token
        assert 0 < sum(math.exp(logprob) for logprob in top) <= 1 + 1e-5, token
        same = [other.logprob for other in token.top_logprobs if other.bytes == token.bytes]
        assert not same or token.logprob in same, token
    for token in server.chat(logprobs=True, top_logprobs=1, temperature=0).choices[0].logprobs.content:
        assert token.token == token.top_logprobs[0].token and token.logprob == token.top_logprobs[0].logprob, token
    nucleus = server.chat(logprobs=True, top_logprobs=20, extra_body={"top_k": 3}).choices[0].logprobs.content
    for token in nucleus:
        assert math.isclose(sum(math.exp(other.logprob) for other in token.top_logprobs), 1, abs_tol=1e-5), token
        assert len(token.top_logprobs) == 3 and token.token in [other.token for other in token.top_logprobs], token
    streamed = [token for chunk in server.chat(logprobs=True, stream=True) for choice in chunk.choices if choice.logprobs
                for token in choice.logprobs.content]
    assert [token.logprob for token in streamed] == [token.logprob for token in answer.logprobs.content]


def the_prompts_scores_are_those_it_was_sampled_with(server):
    sampled = server.complete(logprobs=2)
    choice = sampled.choices[0]
    scored = server.complete(prompt="The sea is" + choice.text, logprobs=2, echo=True, max_tokens=0).choices[0]
    assert scored.text == "The sea is" + choice.text and scored.finish_reason == "length", scored
    assert scored.logprobs.token_logprobs[0] is None and scored.logprobs.top_logprobs[0] is None
    if scored.logprobs.tokens[3:] == choice.logprobs.tokens:  # encoding may cut the text elsewhere
        assert scored.logprobs.token_logprobs[3:] == choice.logprobs.token_logprobs, "the same tokens have the same bits"
    for logprobs, text in ((choice.logprobs, choice.text), (scored.logprobs, scored.text)):
        for token, offset in zip(logprobs.tokens, logprobs.text_offset):
            assert token.startswith("bytes:") or text[offset:].startswith(token), (token, offset)


def a_prompt_may_be_text_or_tokens_or_many(server):
    vocabulary = gguf.GGUFReader(packaged_model()).fields["tokenizer.ggml.tokens"].contents()
    ids = [vocabulary.index(token) for token in ("The", "Ġsea", "Ġis")]
    assert server.complete(prompt=ids, echo=True).choices[0].text == server.complete(echo=True).choices[0].text
    one, two = server.complete().choices[0].text, server.complete(prompt="A cat").choices[0].text
    both = server.complete(prompt=["The sea is", "A cat"]).choices
    assert [choice.text for choice in both] == [one, two] and [choice.index for choice in both] == [0, 1]
    assert server.complete(prompt=[ids, [49]], n=2).choices[3].index == 3


def text_ends_before_a_stop_string_that_spans_tokens(server):
    whole = server.chat(logprobs=True).choices[0]
    tokens = [token.token for token in whole.logprobs.content]
    stop = tokens[9][-1:] + tokens[10] + tokens[11][:1]
    expected = whole.message.content[:whole.message.content.index(stop)]
    answer = server.chat(stop=stop)
    assert answer.choices[0].message.content == expected and answer.choices[0].finish_reason == "stop", (stop, answer)
    assert answer.usage.completion_tokens <= 12
    texts, reasons, _ = answers_of(server.chat(stop=["never said", stop], stream=True))
    assert texts == {0: expected} and reasons == {0: "stop"}, texts


def requests_together_get_what_each_gets_alone(server):
    alone = [server.chat(seed=seed).choices[0].message.content for seed in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: server.chat(seed=seed).choices[0].message.content, range(8)))
    assert together == alone


def what_cannot_be_done_is_refused_by_name(server):
    chat, complete = server.chat, server.complete
    for field, value in {"temperature": -0.1, "top_p": 0, "n": 0, "max_tokens": 0, "top_logprobs": 21, "seed": 1.5, "stop": [""],
                         "frequency_penalty": 0.5, "presence_penalty": -1, "logit_bias": {"5": 1}, "messages": [],
                         "response_format": {"type": "json_object"}, "tools": [{"type": "function", "function": {"name": "f"}}],
                         "stream": "yes", "stream_options": {"include_usage": True}}.items():
        body = raised(openai.BadRequestError, lambda: chat(**({"logprobs": True} | {field: value})))
        assert body["param"] == field, (field, body)
    for field, value in {"temperature": 2.5, "prompt": "", "logprobs": 6, "best_of": 3, "suffix": "x",
                         "stop": list("abcde")}.items():
        assert raised(openai.BadRequestError, lambda: complete(**{field: value}))["param"] == field
    for prompt in ([49152], [-1], [[1], []], [1, "a"], {"a": 1}, [True]):
        assert raised(openai.BadRequestError, lambda: complete(prompt=prompt))["param"] == "prompt", prompt
    body = raised(openai.BadRequestError, lambda: complete(prompt=[5] * 8193))
    assert body["code"] == "context_length_exceeded" and body["param"] == "prompt", body
    body = raised(openai.BadRequestError, lambda: complete(max_tokens=8190))
    assert body["code"] == "context_length_exceeded" and body["param"] == "max_tokens", body
    assert raised(openai.BadRequestError, lambda: chat(extra_body={"min_tokens": 3}))["param"] == "min_tokens"
    assert raised(openai.BadRequestError, lambda: chat(messages=[{"role": "tool", "content": "x"}]))["param"] == "messages[0].role"
    assert raised(openai.NotFoundError, lambda: chat(model="gpt-4"))["code"] == "model_not_found"
    assert raised(openai.NotFoundError, lambda: server.client.embeddings.create(model=MODEL, input="x"))["code"] == "unknown_url"


def what_is_no_request_is_refused(server):
    def error(*request, **headers) -> tuple[int, dict]:
        status, fields, body = server.raw(*request, **headers)
        return status, json.loads(body)["error"] | {"allow": fields.get("Allow")}
    post, chat = "POST", "/v1/chat/completions"
    for body in ("", "{", "[1]", '{"model": 1, "model": 2}', '{"temperature": NaN}', '{"seed": 1e999}', b'{"a": "\xff"}', "[" * 100000):
        assert error(post, chat, body)[0] == 400, body[:40]
    assert error("GET", chat)[0] == 405 and error("DELETE", "/health")[0] == 405
    assert error("GET", "/nothing")[0] == 404
    assert error(post, chat, "{}", Content_Type="text/plain")[0] == 415
    assert error(post, chat, b" " * (9 << 20))[0] == 413
    assert error("GET", "/v1/models", Host="example.org")[0] == 403
    assert error("GET", "/health", X_Long="x" * 20000)[0] == 431


def a_client_that_leaves_ends_its_request(server):
    before = server.metrics()['flotilla_requests_total{outcome="cancelled"}']
    stream = server.chat(stream=True, max_tokens=8000, n=2)
    next(iter(stream))
    stream.close()
    server.wait_for("the cancellation", lambda m: m['flotilla_requests_total{outcome="cancelled"}'] == before + 1)
    # Also one that waits for a whole answer.
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": MODEL, "messages": QUESTION, "max_tokens": 8000}),
                       {"Content-Type": "application/json"})
    server.wait_for("the request", lambda m: m["flotilla_requests_running"] == 1)
    connection.close()
    server.wait_for("an empty batch", lambda m: m["flotilla_sequences_active"] == 0 and m["flotilla_kv_blocks_used"] == 0)
    assert server.metrics()['flotilla_requests_total{outcome="cancelled"}'] == before + 2


def metrics_say_what_was_done(server):
    before = server.metrics()
    server.chat(max_tokens=7)
    raised(openai.BadRequestError, lambda: server.chat(n=0))
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown['flotilla_requests_total{outcome="completed"}'] == 1 and grown['flotilla_requests_total{outcome="refused"}'] == 1
    assert grown["flotilla_generated_tokens_total"] == 7 and grown["flotilla_request_seconds_count"] == 1, grown
    assert grown['flotilla_request_seconds_bucket{le="+Inf"}'] == 1 and grown["flotilla_first_token_seconds_count"] == 1, grown


def a_full_queue_is_told(_):
    long_request = json.dumps({"model": MODEL, "messages": QUESTION, "max_tokens": 8000, "n": 128})
    with Server("--sequences", "1", "--queue", "1") as small:
        connections = []  # whose answers nobody awaits
        for state in ("running", "queued"):
            connections.append(http.client.HTTPConnection("127.0.0.1", small.port))
            connections[-1].request("POST", "/v1/chat/completions", long_request, {"Content-Type": "application/json"})
            small.wait_for(f"a request that is {state}", lambda m: m[f"flotilla_requests_{state}"] == 1)
        assert raised(openai.RateLimitError, small.chat)["code"] == "queue_full"


def a_time_limit_is_told(_):
    with Server("--sequences", "1", "--time-limit", "1") as hasty, concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(lambda: raised(openai.InternalServerError, lambda: hasty.chat(max_tokens=8000, n=128)))
                   for _ in range(2)]  # one of them waits all the time
        assert [answer.result()["code"] for answer in answers] == ["time_limit"] * 2


def a_token_is_asked_for(_):
    with Server(token="not told", model=None) as closed:
        closed.client.models.list()  # none is asked for: any key will do
    os.environ["FLOTILLA_SERVE_TOKEN"] = "right"
    try:
        with Server("--address", "0.0.0.0", token="right") as server:
            assert server.chat(max_tokens=2).usage.completion_tokens == 2
            for key in ("wrong", "righ", "righty"):
                client = server.client.with_options(api_key=key)
                assert raised(openai.AuthenticationError, client.models.list)["code"] == "invalid_api_key"
            assert server.raw("GET", "/metrics")[0] == 401 and server.raw("GET", "/health")[0] == 200
    finally:
        del os.environ["FLOTILLA_SERVE_TOKEN"]
    refused = subprocess.run([BIN / "flotilla", "serve", packaged_model(), "--address", "0.0.0.0"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--token" in refused.stderr, refused


def a_signal_lets_answers_end(_):
    with Server() as server:
        stream = server.chat(stream=True, max_tokens=60)
        chunks = iter(stream)
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        texts, reasons, _ = answers_of(chunks)
        assert reasons[0] in ("length", "stop") and texts[0], (texts, reasons)
        assert server.process.wait(60) == 0
    with Server("--grace", "0") as server:
        stream = iter(server.chat(stream=True, max_tokens=8000))
        next(stream)
        server.process.send_signal(signal.SIGINT)
        body = raised(openai.APIError, lambda: list(stream))
        assert "stopping" in body["message"] and server.process.wait(60) == 0


def the_terminal_says_what_the_server_says(server):
    def chat(message: str, *more: str) -> subprocess.CompletedProcess:
        return subprocess.run([BIN / "flotilla", "chat", packaged_model(), "--seed", "5", "--max-tokens", "24", *more], input=message,
                              capture_output=True, text=True)
    said = chat(QUESTION[0]["content"])
    assert said.returncode == 0 and said.stdout == server.chat().choices[0].message.content + "\n", said
    assert "cut after 24 tokens" in said.stderr, said
    said = chat("Hi", "--system", "Answer in French.", "--temperature", "0", "--top-k", "3", "--top-p", "0.5")
    messages = [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Hi"}]
    assert said.stdout == server.chat(messages=messages, temperature=0).choices[0].message.content + "\n", said
    for refused in (chat("Hi", "--temperature", "-1"), chat("Hi", "--top-k", "-1"), chat("Hi", "--top-p", "0"), chat(" \n"),
                    chat("Hi", "--version", "1")):
        assert refused.returncode == 2 and refused.stderr, refused
    too_long = chat("word " * 9000)
    assert too_long.returncode == 1 and "context is full" in too_long.stderr, too_long


def a_conversation_in_the_terminal_goes_on_until_it_is_reset(server):
    ours, theirs = pty.openpty()
    process = subprocess.Popen([BIN / "flotilla", "chat", packaged_model(), "--temperature", "0", "--max-tokens", "16"],
                               stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = ""

    def until_prompt() -> str:
        nonlocal shown
        while not shown.endswith("> "):
            shown += os.read(ours, 4096).decode().replace("\r\n", "\n")
        text, shown = shown, ""
        return text

    def say(message: str) -> str:
        os.write(ours, message.encode() + b"\n")
        return until_prompt()

    messages = []
    assert "8192 tokens of context" in until_prompt()
    for question in ("Hi", "What is a cat?"):
        messages.append({"role": "user", "content": question})
        answer = server.chat(messages=messages, temperature=0, max_tokens=16).choices[0].message.content
        assert answer in say(question), answer
        messages.append({"role": "assistant", "content": answer})
    assert "forgotten" in say("/reset")
    assert messages[1]["content"] in say("Hi")
    assert "is no command" in say("/what")
    os.write(ours, b"/exit\n")
    assert process.wait(60) == 0
    os.close(ours)


TESTS = [models_are_listed, a_chat_is_answered_and_a_seed_repeats_it, a_stream_says_the_same_in_pieces,
         choices_differ_and_the_first_is_the_only_one, logprobs_are_those_of_the_distribution,
         the_prompts_scores_are_those_it_was_sampled_with, a_prompt_may_be_text_or_tokens_or_many,
         text_ends_before_a_stop_string_that_spans_tokens, requests_together_get_what_each_gets_alone,
         what_cannot_be_done_is_refused_by_name, what_is_no_request_is_refused, a_client_that_leaves_ends_its_request,
         metrics_say_what_was_done, the_terminal_says_what_the_server_says,
         a_conversation_in_the_terminal_goes_on_until_it_is_reset, a_full_queue_is_told,
         a_time_limit_is_told, a_token_is_asked_for, a_signal_lets_answers_end]


def main() -> int:
    wanted = sys.argv[1:]
    with Server("--queue", "64") as server:
        for test in TESTS:
            if not wanted or test.__name__ in wanted:
                print(test.__name__, flush=True)
                test(server)
    print(f"{len(wanted) or len(TESTS)} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
