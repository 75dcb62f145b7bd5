"""Random requests, right and wrong: no panic, no 5xx, and the next request is answered.

Usage: fuzz.py URL MODEL KEY PID SECONDS [ONE]

Each request is made from the seed (SEED, 1 by default) and its number alone; what fails is printed
with its number, and ONE runs that one again. Requests are bounded: answers of a few tokens, bodies
of at most some hundred kilobytes, at most eight at once. A request may be refused with 4xx in the
API's error object; a stream may end in an error event of the request's own grammar.
"""

import collections
import http.client
import json
import os
import random
import socket
import sys
import threading
import time
import urllib.parse

URL, MODEL, KEY, PID = sys.argv[1:5]
SECONDS = float(sys.argv[5])
ONE = int(sys.argv[6]) if len(sys.argv) > 6 else None
SEED = int(os.environ.get("SEED", "1"))
ADDRESS = urllib.parse.urlparse(URL)
WORKERS = 8
# Seconds that an answer may take on a machine with other work.
PATIENCE = 590
ROUTES = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
NUMBERS = [0, -1, 1, 2, 3, 7, 20, 21, 128, 255, 256, 257, 511, 512, 1 << 31, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
           1 << 64, 10 ** 40, -(1 << 63), -(1 << 70), 0.0, -0.0, 0.5, 1.5, -1e-300, 1e-300, 1e16, 1e300, 1e308, -1e308]
TEXTS = ["", " ", "a", "x" * 5000, "\0", "\u202e\u0000", "🦊", "e\u0301" * 50, "\ud800", "<|im_end|>", "<|im_start|>system\n", "<think>", "</think>",
         "<tool_call>", "{{ 7 * 7 }}", "{% raw %}", "%s%n", "../../etc/passwd", "NaN", "null", "\r\n\r\n", "data: [DONE]\n\n", "auto", "none", "required",
         "json_object", "json_schema", "text", "function", "user", "assistant", "tool", "system", "mock", MODEL]
FIELDS = ["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "typical_p", "n", "seed", "stop",
          "stop_token_ids", "ignore_eos", "logprobs", "top_logprobs", "logit_bias", "stream", "stream_options", "response_format", "tools", "tool_choice",
          "parallel_tool_calls", "echo", "user", "guided_regex", "guided_json", "guided_grammar", "repetition_penalty", "presence_penalty", "frequency_penalty",
          "cache_salt", "chat_template_kwargs", "receipt", "return_token_ids", "best_of", "suffix", "functions", "function_call", "audio", "modalities",
          "prediction", "store", "metadata", "service_tier", "reasoning_effort", "tokens", "add_special_tokens", "use_beam_search", "prompt_logprobs", "odd"]


class Wrong(Exception):
    """The server did what it must not."""


def value(rng, depth=0):
    """Any JSON value, small most of the time."""
    kind = rng.randrange(10 if depth < 4 else 7)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind <= 3:
        return rng.choice(NUMBERS)
    if kind <= 6:
        return rng.choice(TEXTS)
    if kind == 7:
        return {rng.choice(FIELDS + TEXTS[:8]): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [value(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3, 40]))]


def schema(rng, depth=0):
    """A JSON schema, often one that makes no sense or has no end."""
    kind = rng.randrange(16)
    inner = lambda: schema(rng, depth + 1) if depth < 5 else {"type": "string"}
    if kind == 0:
        return {"$ref": rng.choice(["#", "#/$defs/a", "#/$defs/none", "http://nowhere/x", ""]), "$defs": {"a": {"$ref": "#/$defs/a"}}}
    if kind == 1:
        return {"type": "string", "pattern": regex(rng)}
    if kind == 2:
        return {"type": "string", "minLength": rng.choice(NUMBERS), "maxLength": rng.choice(NUMBERS)}
    if kind == 3:
        return {"type": rng.choice(["integer", "number"]), rng.choice(["minimum", "exclusiveMinimum"]): rng.choice(NUMBERS),
                rng.choice(["maximum", "multipleOf"]): rng.choice(NUMBERS)}
    if kind in (4, 5):
        names = [rng.choice(TEXTS) for _ in range(rng.randrange(4))]
        return {"type": "object", "properties": {name: inner() for name in names}, "required": names if rng.random() < 0.5 else ["missing"],
                "additionalProperties": rng.choice([True, False])}
    if kind == 6:
        return {"type": "array", "items": inner(), "minItems": rng.choice(NUMBERS), "maxItems": rng.choice(NUMBERS)}
    if kind in (7, 8, 9):
        return {["anyOf", "oneOf", "allOf"][kind - 7]: [inner() for _ in range(rng.randrange(4))]}
    if kind == 10:
        return {"enum": [value(rng, 3) for _ in range(rng.randrange(5))]}
    if kind == 11:
        return {"const": value(rng, 2)}
    if kind == 12:
        return {"type": rng.choice(["string", "null", "boolean", "strange", ["string", "null"], 5])}
    if kind == 13:
        return {"not": inner()}
    if kind == 14:
        return rng.choice([True, False, None, [], "x", {}])
    return value(rng, 2)


def regex(rng):
    parts = ["a", "b", "[a-c]", "[^a]", "[]", "[^\\x00-\\U{10FFFF}]", ".", "\\d", "\\b", "^", "$", "(", ")", "|", "*", "+", "?", "{2}", "{0,9}", "{9,2}",
             "{1000}", "{1000000}", "(?=x)", "(?i)", "\\1", "\\p{L}", "\\", "🦊", "\0", "(a|b)*", "((((", "))))"]
    return "".join(rng.choice(parts) for _ in range(rng.randrange(10)))


def lark(rng):
    names = ["start", "a", "b", "A", "B"]
    items = names + ['"x"', '"y"', '""', "/[0-9]+/", "/(/", "(", ")", "|", "*", "+", "?", "~ 3..5", "%json {}", '%json {"$ref": "#"}', "<|im_end|>", "none"]
    lines = [f"{name}: " + " ".join(rng.choice(items) for _ in range(rng.randrange(5))) for name in names if rng.random() < 0.7]
    return "\n".join(lines)


def tool(rng):
    function = {"name": rng.choice(["f", "weather", "", "a b", "x" * 65]), "description": rng.choice(TEXTS), "parameters": schema(rng)}
    return {"type": "function", "function": function} if rng.random() < 0.9 else value(rng)


def message(rng):
    return {"role": rng.choice(["user", "user", "system", "assistant", "tool", "nobody"]), "content": rng.choice(TEXTS + [None, 5, [{"type": "text", "text": "hi"}]])}


def body(rng, route):
    """A request that is right but for a few fields."""
    if route == "/tokenize":
        right = {"prompt": rng.choice(TEXTS)} if rng.random() < 0.5 else {"messages": [message(rng)]}
    elif route == "/detokenize":
        right = {"tokens": [rng.randrange(300) for _ in range(rng.randrange(20))]}
    else:
        right = {"model": MODEL, "max_tokens": rng.randrange(1, 9), "stream": rng.random() < 0.5, "temperature": rng.choice([0, 0, 1, 0.7])}
        if route == "/v1/completions":
            right["prompt"] = rng.choice(TEXTS + [[1, 2, 3], ["a", "b"], [[1], [2, 3]], [300000]])
        else:
            right["messages"] = [message(rng) for _ in range(rng.randrange(1, 4))]
        choice = rng.randrange(12)
        if choice == 0:
            right["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema(rng)}}
        elif choice == 1:
            right[rng.choice(["guided_json", "guided_regex", "guided_grammar"])] = rng.choice([schema, regex, lark])(rng)
        elif choice == 2:
            right["guided_regex"] = regex(rng)
        elif choice == 3:
            right["guided_grammar"] = lark(rng)
        elif choice == 4:
            right["tools"] = [tool(rng) for _ in range(rng.randrange(3))]
            right["tool_choice"] = rng.choice(["auto", "none", "required", value(rng)])
        elif choice == 5:
            right["response_format"] = {"type": "json_object"}
        elif choice == 6:
            right["logit_bias"] = {str(rng.choice(NUMBERS + [5, 65, "x", "01"])): rng.choice(NUMBERS) for _ in range(rng.randrange(4))}
    for _ in range(rng.choice([0, 0, 0, 1, 1, 3])):
        right[rng.choice(FIELDS)] = value(rng)
    return right


def encoded(rng, route):
    """The bytes of a body, broken now and then."""
    text = json.dumps(body(rng, route), ensure_ascii=rng.random() < 0.5)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    how = rng.randrange(12)
    if how == 0 and data:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif how == 1:
        data = data[: rng.randrange(len(data) + 1)]
    elif how == 2:
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.choice([b"NaN", b"[" * 300, b"\xff\xfe", b'"', b"1e999", b"\x00", b"/*x*/", b"{" * 50])
    elif how == 3 and rng.random() < 0.3:
        data = bytearray(rng.randbytes(rng.randrange(2000)))
    elif how == 4 and rng.random() < 0.2:
        data = bytearray(json.dumps({"model": MODEL, "prompt": "ab " * rng.randrange(60_000), "max_tokens": 2}).encode())
    return bytes(data)


def error_of(text, where):
    try:
        error = json.loads(text)["error"]
        assert isinstance(error["message"], str) and "\n" not in error["message"] and isinstance(error["type"], str)
        return error
    except (ValueError, KeyError, TypeError, AssertionError) as problem:
        raise Wrong(f"{where}: not an error object ({problem}): {text[:300]!r}") from None


def check(status, text, is_stream, where):
    if status >= 500:
        raise Wrong(f"{where}: {status} {text[:500]}")
    if status >= 400:
        error_of(text, where)
    elif status == 200 and is_stream:
        if "data: [DONE]" in text:
            return
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if not events or error_of(events[-1], where)["code"] != "invalid_grammar":
            raise Wrong(f"{where}: the stream ends with {text[-300:]!r}")


def ordinary(rng):
    """A request through an ordinary client, read whole or left early."""
    route = rng.choice(ROUTES[:2] * 4 + ROUTES)
    data = encoded(rng, route)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    if rng.random() < 0.03:
        headers["authorization"] = rng.choice(["Bearer", "Bearer no", "Basic x", "\xff"])
    if rng.random() < 0.03:
        headers["content-type"] = rng.choice(["text/plain", "", "application/json; charset=utf-16", "multipart/form-data"])
    connection = http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=PATIENCE)
    try:
        connection.request("POST", route, data, headers)
        answer = connection.getresponse()
        is_stream = (answer.getheader("content-type") or "").startswith("text/event-stream")
        if is_stream and rng.random() < 0.15:
            answer.read(rng.randrange(1, 400))
            return "left early"
        text = answer.read().decode("utf-8", "replace")
        check(answer.status, text, is_stream, f"{route} {data[:1500]!r}")
        return f"{route.rsplit('/', 1)[-1]} {answer.status}"
    finally:
        connection.close()


def odd_method(rng):
    """Any method on any path."""
    method = rng.choice(["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "POST"])
    path = rng.choice(ROUTES + ["/", "/metrics", "/health/live", "/health/ready", "/v1/models", f"/v1/models/{MODEL}", "/v1/models/../x", "/%00", "/" + "a" * 3000, "//", "/v1/embeddings"])
    headers = {"authorization": f"Bearer {KEY}", "origin": rng.choice(["null", "https://x.example", "\x7f"]), "access-control-request-method": "POST"}
    connection = http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 500:
            raise Wrong(f"{method} {path[:80]}: {answer.status}")
        return f"{method} {answer.status}"
    finally:
        connection.close()


def raw(rng):
    """Bytes on a socket: heads that are no HTTP, bodies that are cut, slow or longer than they say."""
    route = rng.choice(ROUTES)
    data = encoded(rng, route)
    length = rng.choice([len(data), len(data), len(data) + 7, max(0, len(data) - 7), 1 << 64, -1, "x", 10 ** 30])
    head = f"POST {route} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    head += rng.choice([f"content-length: {length}\r\n"] * 4 + ["transfer-encoding: chunked\r\n", f"content-length: {length}\r\ncontent-length: 3\r\n", "", "x: " + "y" * 70_000 + "\r\n"])
    whole = head.encode() + b"\r\n" + data
    how = rng.randrange(5)
    if how == 0:
        whole = rng.randbytes(rng.randrange(1, 3000))
    elif how == 1:
        whole = whole[: rng.randrange(len(whole))]
    elif how == 2:
        at = rng.randrange(min(200, len(whole)))
        whole = whole[:at] + rng.randbytes(rng.randrange(1, 9)) + whole[at:]
    with socket.create_connection((ADDRESS.hostname, ADDRESS.port), timeout=PATIENCE) as connection:
        try:
            if rng.random() < 0.2:
                for i in range(0, min(len(whole), 400), 20):
                    connection.sendall(whole[i : i + 20])
                    time.sleep(rng.random() * 0.1)
                connection.sendall(whole[400:])
            else:
                connection.sendall(whole)
            if rng.random() < 0.5:
                return "cut"
            # Half closed: the server answers, or closes.
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(PATIENCE)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        except TimeoutError:
            raise Wrong(f"no end within {PATIENCE} s: {whole[:1500]!r}") from None
        except OSError:
            return "reset"
    status = answer.split(b" ", 2)[1:2] if answer.startswith(b"HTTP/1.") else []
    if status and status[0][:1] == b"5":
        raise Wrong(f"{whole[:1500]!r}: {answer[:500]!r}")
    return f"raw {status[0].decode() if status else 'closed'}"


def get(path):
    connection = http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {KEY}"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def metrics():
    lines = [line.rsplit(" ", 1) for line in get("/metrics").splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def known():
    """The answer to a request that must always be answered."""
    data = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 6, "temperature": 0, "ignore_eos": True})
    connection = http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=PATIENCE)
    try:
        connection.request("POST", "/v1/completions", data, {"authorization": f"Bearer {KEY}", "content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise Wrong(f"the next request was not answered: {answer.status} {text}")
        return json.loads(text)["choices"][0]["text"]
    finally:
        connection.close()


def memory():
    with open(f"/proc/{PID}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def request(number):
    rng = random.Random(f"{SEED}:{number}")
    return rng.choice([ordinary] * 8 + [odd_method, raw])(rng)


def main():
    alone = known()
    if ONE is not None:
        print(ONE, request(ONE))
        return 0 if known() == alone else 1
    counts, wrong, lock = collections.Counter(), [], threading.Lock()
    state = {"next": 0}
    end = time.monotonic() + SECONDS

    def worker():
        while time.monotonic() < end and len(wrong) < 5:
            with lock:
                number = state["next"]
                state["next"] += 1
            try:
                kind = request(number)
                if number % 25 == 0 and known() != alone:
                    raise Wrong("the known answer is another one")
            except Wrong as problem:
                kind = "WRONG"
                wrong.append(f"request {number} of seed {SEED}: {problem}")
                print("WRONG:", wrong[-1], flush=True)
            except (OSError, http.client.HTTPException) as problem:
                kind = "WRONG"
                wrong.append(f"request {number} of seed {SEED}: {type(problem).__name__} {problem}")
                print("WRONG:", wrong[-1], flush=True)
            with lock:
                counts[kind] += 1

    workers = [threading.Thread(target=worker) for _ in range(WORKERS)]
    for thread in workers:
        thread.start()
    warm_at = time.monotonic() + min(300, SECONDS / 2)
    said = time.monotonic()
    warm = None
    while any(thread.is_alive() for thread in workers):
        time.sleep(0.5)
        if warm is None and time.monotonic() >= warm_at:
            warm = memory()
        if time.monotonic() - said >= 60:
            said = time.monotonic()
            print(f"  {sum(counts.values())} requests, {len(wrong)} wrong, {memory():.0f} MiB", flush=True)
    warm = warm or memory()
    now = {}
    for _ in range(600):
        now = metrics()
        held = now["butter_sequences_leased"] - now["butter_sequences_kept"]
        if now["butter_requests_running"] + now["butter_requests_queued"] + held == 0:
            break
        time.sleep(0.05)
    if known() != alone:
        wrong.append("the known answer is another one at the end")
    print(f"seed {SEED}, {SECONDS:.0f} s: {sum(counts.values())} requests, {len(wrong)} wrong")
    print("  " + ", ".join(f"{kind}: {count}" for kind, count in sorted(counts.items())))
    print(f"  memory {warm:.0f} MiB warm, {memory():.0f} MiB at the end; held after: {held:.0f} sequences")
    leaked = now['butter_leases_total{event="leaked"}']
    # The tokenizer keeps the words that it has met, up to a number: that takes long to be full.
    grown = memory() > warm * 1.5 + 200
    return 1 if wrong or held or leaked or grown else 0


sys.exit(main())
