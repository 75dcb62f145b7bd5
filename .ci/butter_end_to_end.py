"""Greedy answers of a real model, against ids that another implementation gave.

Usage: butter_end_to_end.py MODEL GOLDENS BACKEND

Takes three prompts of the goldens, a chat among them, through the command line as a user would.
On `cpu` the last of them again with n-gram speculation, and its mean negative log-likelihood.
"""

import json
import subprocess
import sys
import tempfile

PROMPTS = 3
TOKENS = 16


def generate(model, backend, arguments):
    options = ["--temperature", "0", "--max-tokens", str(TOKENS), "--ignore-eos"]
    return butter("generate", model, backend, options + arguments)


def butter(what, model, backend, arguments):
    command = ["cargo", "run", "--quiet", "--package", "butter", "--", what]
    command += ["--model", model, "--backend", backend, "--dtype", "f32", "--json"] + arguments
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
    if backend == "cpu":
        prompt = chosen[-1]
        answer = generate(model, backend, ["--prompt", prompt["text"], "--ngram"])
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as ids:
            json.dump(prompt["prompt_ids"], ids)
            ids.flush()
            found = butter("perplexity", model, backend, ["--ids", ids.name])
        far = abs(found["mean_nll"] - prompt["mean_nll"])
        same = answer["token_ids"] == prompt["greedy"][:TOKENS] and far < 1e-4
        print(f"{backend}: n-gram speculation {answer['speculation']}; mean negative log-likelihood {found['mean_nll']:.6f}, off by {far:.1e}")
        failed += not same
    print(f"{backend}: {len(chosen) - failed} of {len(chosen)} prompts give the reference's ids")
    return 1 if failed or not chosen else 0


sys.exit(main())
