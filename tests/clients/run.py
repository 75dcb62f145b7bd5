"""Serves a model on the CPU and lets clients loose on it, as a user would.

Usage: run.py MODEL [--seconds N] [--clients N] [--only NAME,…] [--screenshot FILE]
              [--binary FILE] [--reuse KIND]

MODEL is a checkpoint, or `tiny:FAMILY` for one of `tests/data/models` with a tokenizer of bytes.
Names: python (the `openai` package of PyPI), node (that of npm), curl (the README's commands), page
(Chromium), load (many clients at once); if asked for, fuzz (random requests) and prefix (common
beginnings). What a test needs and this machine lacks is skipped by name, which is exit code 3;
`--only` names what must be there.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
TOOLS = TARGET / "tools" / "clients"
KEY = "key-of-the-tests"
NAME = "smollm2"


class Missing(Exception):
    """Something that a test needs is not on this machine."""


def run(command, **options):
    print("$", " ".join(map(str, command)), flush=True)
    return subprocess.run(command, check=False, **options).returncode


class Served:
    """`butter serve` in a process of its own."""

    def __init__(self, model, binary, reuse, longest):
        command = [binary, "serve", "--model", model, "--port", "0"]
        command += ["--served-name", NAME, "--chat-template", str(HERE / "chat_with_tools.jinja")]
        command += ["--max-running", "16", "--cache-tokens", "8192", "--max-positions", str(longest), "--prefix-reuse", reuse]
        command += ["--default-max-tokens", "256"]
        environment = dict(os.environ, BUTTER_API_KEYS=KEY, BUTTER_LOG="warn")
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.url = None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"serving \S+ at (http://\S+)", line)
            if found:
                self.url = found[1]
                break
        if self.url is None:
            raise SystemExit("error: the server did not start:\n" + "".join(self.lines))
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def stop(self):
        """Ends it as an operator would; it must end well."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        if code != 0 or any("panicked" in line for line in self.lines):
            raise SystemExit(f"error: the server ended with {code}:\n" + "".join(self.lines[-40:]))


def tiny(family, folder):
    """A random checkpoint of the test data, with a tokenizer whose tokens are bytes."""
    source = ROOT / "tests" / "data" / "models" / family / "bf16"
    if not source.is_dir():
        raise SystemExit(f"error: there is no {source}")
    for weights in source.glob("*.safetensors*"):
        shutil.copy(weights, folder)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["eos_token_id"] = 258
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    # Byte-level BPE writes bytes that are no printable characters as letters from U+0100 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    controls = ["<|im_start|>", "<|im_end|>"]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": 257 + i, "content": content, **special} for i, content in enumerate(controls)],
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": {**{letters[byte]: byte for byte in range(256)}, "ab": 256}, "merges": ["a b"]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}), encoding="utf-8")
    return folder


def python(served, _):
    folder = TOOLS / "python"
    if not (folder / "openai").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder, "openai"]
        if run(pip) != 0:
            raise Missing("pip could not install openai")
    environment = dict(os.environ, PYTHONPATH=str(folder))
    return run([sys.executable, HERE / "openai_client.py", served.url, NAME, KEY], env=environment)


def node(served, _):
    if not shutil.which("node") or not shutil.which("npm"):
        raise Missing("node with npm is not on PATH")
    folder = TOOLS / "npm"
    if not (folder / "node_modules" / "openai").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        if run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, "openai"]) != 0:
            raise Missing("npm could not install openai")
    shutil.copy(HERE / "openai_client.mjs", folder)
    return run(["node", folder / "openai_client.mjs", served.url, NAME, KEY])


def curl(served, _):
    """The README's commands, with this server's address and key."""
    if not shutil.which("curl"):
        raise Missing("curl is not on PATH")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) if block.startswith("curl ")]
    if not blocks:
        print("error: the README has no curl command")
        return 1
    for block in blocks:
        command = block.replace("http://127.0.0.1:8080", served.url).replace("smollm2-135m", NAME)
        command = command.replace("curl ", f"curl --fail-with-body -sS -H 'authorization: Bearer {KEY}' ")
        finished = subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
        print(finished.stdout[-300:])
        if finished.returncode != 0 or '"choices"' not in finished.stdout:
            return 1
    return 0


def page(served, arguments):
    if not shutil.which("chromedriver") and shutil.which("apt-get") and os.geteuid() == 0:
        packages = ["chromium", "chromium-driver"]
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        run(["apt-get", "update", "-qq"], env=environment)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=environment, stdout=subprocess.DEVNULL)
    if not shutil.which("chromedriver"):
        raise Missing("chromedriver is not on PATH (Debian's chromium-driver)")
    command = [sys.executable, HERE / "page.py", served.url, KEY]
    return run(command + ([arguments.screenshot] if arguments.screenshot else []))


def load(served, arguments):
    seconds, clients = str(arguments.seconds), str(arguments.clients)
    return run([sys.executable, HERE / "load.py", served.url, NAME, KEY, str(served.process.pid), seconds, clients])


def fuzz(served, arguments):
    return run([sys.executable, HERE / "fuzz.py", served.url, NAME, KEY, str(served.process.pid), str(arguments.seconds)])


def prefix(served, _):
    return run([sys.executable, HERE / "prefix.py", served.url, NAME, KEY, str(served.process.pid)])


TESTS = {"python": python, "node": node, "curl": curl, "page": page, "load": load, "fuzz": fuzz, "prefix": prefix}
# Of the others `--only` asks.
USUAL = ["python", "node", "curl", "page", "load"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--only", default=",".join(USUAL))
    parser.add_argument("--screenshot")
    parser.add_argument("--binary", help="the butter to run, instead of building one")
    parser.add_argument("--reuse", default="auto", help="the server's --prefix-reuse")
    arguments = parser.parse_args()
    if not arguments.binary:
        subprocess.run(["cargo", "build", "--quiet", "--package", "butter"], cwd=ROOT, check=True)
    folder = tempfile.TemporaryDirectory()
    model, longest = arguments.model, 2048
    if model.startswith("tiny:"):
        model, longest = tiny(model.removeprefix("tiny:"), pathlib.Path(folder.name)), 512
    served = Served(model, arguments.binary or TARGET / "debug" / "butter", arguments.reuse, longest)
    failed, missing = [], []
    try:
        for name in arguments.only.split(","):
            try:
                if TESTS[name](served, arguments) != 0:
                    failed.append(name)
            except Missing as reason:
                print(f"SKIPPED {name}: {reason}")
                missing.append(name)
    finally:
        served.stop()
        folder.cleanup()
    print(f"clients: {len(arguments.only.split(',')) - len(failed) - len(missing)} passed, failed: {failed}, skipped: {missing}")
    return 1 if failed else 3 if missing else 0


sys.exit(main())
