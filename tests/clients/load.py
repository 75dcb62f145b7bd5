"""Many clients at once: no cross-talk, greedy answers as alone, counters back to zero, flat memory.

Usage: load.py URL MODEL KEY PID SECONDS CLIENTS

A third of the requests force a token of their own by `logit_bias`, so a stream that holds another
one's is seen (E23). The others are greedy, and must be beginnings of what the prompt got alone. A
fifth of all go away in the middle. Arrivals, lengths, streaming and departures are random from a
seed that is printed.
"""

import asyncio
import json
import os
import random
import sys
import time
import urllib.parse
import urllib.request

URL, MODEL, KEY, PID = sys.argv[1:5]
SECONDS, CLIENTS = float(sys.argv[5]), int(sys.argv[6])
SEED = int(os.environ.get("SEED", "1"))
ADDRESS = urllib.parse.urlparse(URL)
LONGEST = 32
CANCELLED = 'butter_requests_total{outcome="cancelled"}'
TEXTS = [
    "Once upon a time, there was a",
    "The capital of France is",
    "def add(a, b):\n    return",
    "Water boils at a temperature of",
    "My favourite colour is blue, because the sky is blue and the sea is blue and " * 4 + "so",
    "1, 2, 3, 4, 5,",
]


def get(path):
    request = urllib.request.Request(URL + path, headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def metrics():
    lines = [line.rsplit(" ", 1) for line in get("/metrics").splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def memory():
    with open(f"/proc/{PID}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


async def call(body, leave_after=None):
    """The text of an answer and its tokens' times; None if it was left early."""
    reader, writer = await asyncio.open_connection(ADDRESS.hostname, ADDRESS.port, limit=1 << 22)
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    started = time.monotonic()
    times = []
    try:
        writer.write(head.encode() + payload)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        if leave_after == 0:
            return status, None, times
        if not body["stream"]:
            text = json.loads(await reader.read())
            if status != 200:
                return status, text["error"]["code"], times
            return status, text["choices"][0]["text"], times
        text = ""
        if status != 200:
            return status, json.loads(await reader.read())["error"]["code"], times
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return 500, event["error"]["code"], times
            times.append(time.monotonic() - started)
            text += event["choices"][0]["text"]
            if leave_after is not None and len(times) >= leave_after:
                return status, None, times
        return status, text, times
    finally:
        writer.close()


async def main():
    rng = random.Random(SEED)
    alone = {}
    for text in TEXTS:
        body = {"model": MODEL, "prompt": text, "max_tokens": LONGEST, "temperature": 0, "stream": False}
        status, alone[text], _ = await call(body)
        assert status == 200, alone[text]
    letters = {}
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        request = urllib.request.Request(URL + "/tokenize", data=json.dumps({"prompt": letter}).encode(),
                                         headers={"authorization": f"Bearer {KEY}", "content-type": "application/json"})
        letters[letter] = json.loads(urllib.request.urlopen(request).read())["tokens"][-1]
    end = time.monotonic() + SECONDS
    counts = {"greedy": 0, "forced": 0, "left": 0, "refused": 0}
    first, between, wrong = [], [], []

    async def client(number):
        mine = random.Random(SEED * 1000 + number)
        letter = mine.choice(list(letters))
        while time.monotonic() < end:
            await asyncio.sleep(mine.expovariate(2.0))
            text, tokens = mine.choice(TEXTS), mine.randint(1, LONGEST)
            body = {"model": MODEL, "prompt": text, "max_tokens": tokens, "temperature": 0, "stream": mine.random() < 0.7}
            is_forced = mine.random() < 0.33
            if is_forced:
                body["logit_bias"] = {str(letters[letter]): 100}
                body["temperature"] = mine.choice([0, 1])
            leave = mine.randint(0, 4) if mine.random() < 0.2 and body["stream"] else None
            status, answer, times = await call(body, leave)
            if status == 503 and answer == "overloaded":
                counts["refused"] += 1
            elif status != 200:
                wrong.append(f"status {status}: {answer}")
            elif answer is None:
                counts["left"] += 1
            elif is_forced:
                counts["forced"] += 1
                if answer != letter * tokens:
                    wrong.append(f"client {number} forced {letter} x {tokens} and got {answer!r}")
            else:
                counts["greedy"] += 1
                if not alone[text].startswith(answer):
                    wrong.append(f"{text[:20]!r}: {answer!r} is no beginning of {alone[text]!r}")
            if times:
                first.append(times[0])
                between.extend(b - a for a, b in zip(times, times[1:]))

    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    await asyncio.sleep(min(60, SECONDS / 3))
    warm = memory()
    await asyncio.gather(*clients)
    for _ in range(200):
        now = metrics()
        held = now["butter_sequences_leased"] - now["butter_sequences_kept"]
        if now["butter_requests_running"] + now["butter_requests_queued"] + held == 0:
            break
        await asyncio.sleep(0.05)
    after = memory()
    percentile = lambda values, p: sorted(values)[min(len(values) - 1, int(p * len(values)))] if values else float("nan")
    print(f"seed {SEED}, {CLIENTS} clients, {SECONDS:.0f} s: {counts}")
    for name, values in (("first token", first), ("between tokens", between)):
        points = ", ".join(f"p{int(p * 100)} {1000 * percentile(values, p):.0f} ms" for p in (0.5, 0.9, 0.99))
        print(f"  {name}: {points} ({len(values)})")
    print(f"  tokens {now['butter_generated_tokens_total']:.0f}, steps {now['butter_steps_total']:.0f}, rows {now['butter_step_rows_total']:.0f}, "
          f"reused {now['butter_reused_tokens_total']:.0f}, cancelled {now[CANCELLED]:.0f}")
    print(f"  memory {warm:.0f} MiB warm, {after:.0f} MiB at the end; held after: {held:.0f} sequences")
    for line in wrong[:10]:
        print("  WRONG:", line)
    failed = bool(wrong) or held != 0 or now['butter_leases_total{event="leaked"}'] != 0 or after > warm * 1.1 + 32
    if min(counts["greedy"], counts["forced"], counts["left"]) == 0:
        print("  too few requests of a kind")
        failed = True
    return 1 if failed else 0


sys.exit(asyncio.run(main()))
