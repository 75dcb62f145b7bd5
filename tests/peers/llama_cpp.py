#!/usr/bin/env python3
"""Speed of Butter beside llama.cpp on the processor, on equal terms, in one run.

    python3 -m venv VENV && CMAKE_ARGS=-DGGML_NATIVE=ON VENV/bin/pip install llama-cpp-python
    VENV/bin/python tests/peers/llama_cpp.py MODEL.gguf target/debug/butter --threads 2

Both read the same file, run on the same processors (the process is bound to the first --threads
of those it may use) and take turns. Decode: greedy, tokens a second after the prompt. Prefill:
tokens a second of a prompt of --prompt tokens. Prints a table in Markdown with every run, the
medians and their ratio (Butter / llama.cpp); the token ids of both are compared and counted,
since llama.cpp rounds activations to 8 bits and may choose otherwise after a while.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("butter", help="the butter binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="tokens to decode")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prefill's prompt")
    parser.add_argument("--butter-arguments", default="", help="more of `butter generate`")
    return parser.parse_args()


def butter(options, ids, tokens):
    """The final JSON line of `butter generate`."""
    command = [options.butter, "generate", "--model", options.model, "--backend", "cpu"]
    command += ["--prompt-ids", ",".join(map(str, ids)), "--max-tokens", str(tokens)]
    command += ["--ignore-eos", "--json", *options.butter_arguments.split()]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {run.returncode}: {run.stderr.strip()}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def llama_decode(model, ids, tokens):
    model.reset()
    model.eval(ids)
    chosen = [model.sample(temp=0.0)]
    start = time.perf_counter()
    while len(chosen) < tokens:
        model.eval([chosen[-1]])
        chosen.append(model.sample(temp=0.0))
    return (tokens - 1) / (time.perf_counter() - start), chosen


def llama_prefill(model, ids):
    model.reset()
    start = time.perf_counter()
    model.eval(ids)
    return len(ids) / (time.perf_counter() - start)


def main():
    options = arguments()
    allowed = sorted(os.sched_getaffinity(0))[: options.threads]
    if len(allowed) < options.threads:
        raise SystemExit(f"--threads {options.threads}: only {len(allowed)} processors are allowed")
    os.sched_setaffinity(0, set(allowed))

    # This file has the package's name and its folder comes first.
    sys.path.pop(0)
    import llama_cpp

    model = llama_cpp.Llama(
        model_path=options.model,
        n_ctx=options.prompt + options.tokens + 64,
        n_batch=512,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        verbose=False,
    )
    text = b"Once upon a time, there was a little fox who"
    short = model.tokenize(text, add_bos=False)
    sentence = model.tokenize(text + b" lived in the forest and wanted to see the sea. ")
    long = (sentence * (options.prompt // len(sentence) + 1))[: options.prompt]

    rows = {"decode, llama.cpp": [], "decode, Butter": [], "prefill, llama.cpp": [], "prefill, Butter": []}
    equal = []
    loads = []
    llama_prefill(model, long)
    butter(options, short, 4)
    for _ in range(options.runs):
        speed, chosen = llama_decode(model, short, options.tokens)
        rows["decode, llama.cpp"].append(speed)
        answer = butter(options, short, options.tokens)
        rows["decode, Butter"].append(answer["stats"]["decode_tokens_per_second"])
        pairs = zip(chosen, answer["token_ids"])
        equal.append(next((i for i, (a, b) in enumerate(pairs) if a != b), options.tokens))
        rows["prefill, llama.cpp"].append(llama_prefill(model, long))
        answer = butter(options, long, 1)
        rows["prefill, Butter"].append(answer["stats"]["prefill_tokens_per_second"])
        loads.append(os.getloadavg()[0])

    name = next(
        (line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    print(f"{name}, processors {allowed}, {options.threads} threads; load {min(loads):.1f} to {max(loads):.1f}.")
    print(f"`{os.path.basename(options.model)}`; llama-cpp-python {llama_cpp.__version__}; "
          f"`butter generate --backend cpu {options.butter_arguments}`.".replace(" `.", "`."))
    print(f"Decode of {options.tokens} tokens after {len(short)}; prefill of {len(long)} tokens. Tokens a second.\n")
    print("| | " + " | ".join(f"run {i + 1}" for i in range(options.runs)) + " | median |")
    print("|---" * (options.runs + 2) + "|")
    for label, values in rows.items():
        shown = " | ".join(f"{v:.1f}" for v in values)
        print(f"| {label} | {shown} | {statistics.median(values):.1f} |")
    for what in ("decode", "prefill"):
        ratio = statistics.median(rows[f"{what}, Butter"]) / statistics.median(rows[f"{what}, llama.cpp"])
        print(f"\nRatio of the medians, {what}: **{ratio:.2f}**.")
    print(f"\nEqual tokens before the first that differs: {min(equal)} of {options.tokens}.")


if __name__ == "__main__":
    main()
