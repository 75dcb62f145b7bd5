"""Greedy answers of a real model, against ids that another implementation gave.

Usage: butter_end_to_end.py MODEL GOLDENS BACKEND

Takes three prompts of the goldens, a chat among them, through the command line as a user would.
"""

import json
import subprocess
import sys
import tempfile

PROMPTS = 3
TOKENS = 16


def generate(model, backend, arguments):
    command = ["cargo", "run", "--quiet", "--package", "butter", "--", "generate"]
    command += ["--model", model, "--backend", backend, "--dtype", "f32", "--temperature", "0"]
    command += ["--max-tokens", str(TOKENS), "--ignore-eos", "--json"] + arguments
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)} ended with {finished.returncode}")
    return json.loads(finished.stdout.strip().splitlines()[-1])


def main():
    model, goldens, backend = sys.argv[1:]
    with open(goldens, encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    chats = [prompt for prompt in prompts if prompt["kind"] != "text"]
    texts = [prompt for prompt in prompts if prompt["kind"] == "text"]
    chosen = (chats[:1] + sorted(texts, key=lambda prompt: len(prompt["prompt_ids"])))[:PROMPTS]
    failed = 0
    for prompt in chosen:
        if prompt["kind"] == "text":
            answer = generate(model, backend, ["--prompt", prompt["text"]])
        else:
            with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as chat:
                json.dump(prompt["text"], chat)
                chat.flush()
                answer = generate(model, backend, ["--chat", chat.name])
        expected = prompt["greedy"][:TOKENS]
        same = answer["prompt_ids"] == prompt["prompt_ids"] and answer["token_ids"] == expected
        print(f"{backend}: {'ok' if same else 'DIFFERS'} after {len(prompt['prompt_ids'])} tokens: {answer['text'][:60]!r}")
        if not same:
            failed += 1
            print(f"  expected {expected}\n  got      {answer['token_ids']}")
    print(f"{backend}: {len(chosen) - failed} of {len(chosen)} prompts give the reference's ids")
    return 1 if failed or not chosen else 0


sys.exit(main())
