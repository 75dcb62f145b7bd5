"""Common beginnings: the answer of a cold start, and a first token as much sooner as is reused.

Usage: prefix.py URL MODEL KEY PID

Prompts of several lengths share nothing, half or nine tenths with an earlier one. Each is asked
twice: where the earlier one is known, and under a `cache_salt` of its own, which makes it a cold
start. Where the model reuses exactly, both answers have the same tokens and the same bits of
log-probabilities. A model with recurrent layers goes on only where an answer ended: there the next
turn of a talk is asked, which may round otherwise. Clocks are the time to the first token and the
processor time of the server, which other work on the machine hardly changes.
"""

import json
import os
import random
import sys
import time
import urllib.request

URL, MODEL, KEY, PID = sys.argv[1:5]
LENGTHS = [int(length) for length in os.environ.get("LENGTHS", "256,512,1024,1920").split(",")]
TOKENS = 8
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
rng = random.Random(int(os.environ.get("SEED", "1")))


def ask(prompt, salt, tokens=TOKENS):
    """An answer: its ids, its log-probabilities, tokens reused, seconds to the first, processor seconds."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0,
            "return_token_ids": True, "receipt": True, "stream": True, "cache_salt": salt}
    request = urllib.request.Request(URL + "/v1/completions", data=json.dumps(body).encode(), headers=HEADERS)
    started, worked, first = time.monotonic(), processor(), None
    ids, logprobs, receipt = [], [], None
    with urllib.request.urlopen(request, timeout=3600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            receipt = event.get("receipt", receipt)
            for choice in event["choices"]:
                if choice["token_ids"] and first is None:
                    first = (time.monotonic() - started, processor() - worked)
                ids += choice["token_ids"]
                logprobs += (choice["logprobs"] or {}).get("token_logprobs", [])
    return ids, logprobs, receipt["answers"][0]["reused_tokens"], *first


def processor():
    """Seconds of all cores that the server took so far."""
    with open(f"/proc/{PID}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    with urllib.request.urlopen(urllib.request.Request(URL + "/v1/models", headers=HEADERS)) as answer:
        described = json.loads(answer.read())["data"][0]
    kind, vocab = described["prefix_reuse"]["kind"], described["vocab_size"]
    draw = lambda count: [rng.randrange(min(vocab, 250)) for _ in range(count)]
    wrong = []
    print(f"prefix reuse: {kind}")
    print("| prompt | shared | reused | first token, cold | reused | of cold | processor, cold | reused | of cold | largest difference of log-probabilities |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for length in LENGTHS:
        salt, earlier = f"talk {length}", draw(length)
        earlier += ask(earlier, salt)[0]
        for share in (0, 50, 90):
            shared = length * share // 100
            if kind == "continuation" and share:
                # So much more that what is known is the share.
                prompt = earlier + draw(max(1, len(earlier) * (100 - share) // share))
            else:
                prompt = earlier[:shared] + draw(length - shared)
            warm = ask(prompt, salt)
            # Whoever reuses a beginning takes it over: the next one goes on from this cold start.
            salt = f"cold {length} {share}"
            cold = ask(prompt, salt)
            earlier = prompt + cold[0]
            difference = max(abs(a - b) for a, b in zip(warm[1], cold[1], strict=True))
            print(f"| {len(prompt)} | {share}% | {warm[2]} | {1000 * cold[3]:.0f} ms | {1000 * warm[3]:.0f} ms | {warm[3] / cold[3]:.2f} | "
                  f"{cold[4]:.2f} s | {warm[4]:.2f} s | {warm[4] / max(cold[4], 0.01):.2f} | {difference:g} |", flush=True)
            if warm[0] != cold[0] or len(warm[0]) != TOKENS:
                wrong.append(f"{length} tokens, {share}% shared: {warm[0]} and {cold[0]}")
            if difference > (2e-3 if kind == "continuation" else 0):
                wrong.append(f"{length} tokens, {share}% shared: log-probabilities differ by {difference:g}")
            if (warm[2] > 0) != (share > 0) or cold[2] != 0:
                wrong.append(f"{length} tokens, {share}% shared: {warm[2]} were reused, {cold[2]} at a cold start")
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


sys.exit(main())
