"""Runs what the README shows: each block of commands, and the crate that it tells readers to write.

Usage: readme.py

Blocks with the commands named in `TIERS` run as steps of their own, so they are left out here. A
block whose first line is a comment with a path is a file of the reader's crate; a block of commands
that begins with `# in my-kernels` runs in that crate.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

TIERS = ("cargo xtask build-kernels --quick",)
CRATE = "my-kernels"
CHECKOUT = "iron-and-butter"
LAUNCHED = "[2.0, 4.0, 6.0, 8.0]"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?://|#) ([\w./]+\.(?:rs|toml))\n")


def run(commands, folder, environment):
    print(f"---- in {folder.name}\n{commands}", flush=True)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        input="What is the capital of France?\n",
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target")).resolve()
    blocks = BLOCK.findall((root / "README.md").read_text(encoding="utf-8"))
    failed = ran = files = 0
    launched = False
    with tempfile.TemporaryDirectory() as temporary:
        crate = pathlib.Path(temporary) / CRATE
        crate.mkdir()
        (crate.parent / CHECKOUT).symlink_to(root)
        (crate / "rust-toolchain.toml").write_bytes((root / "rust-toolchain.toml").read_bytes())
        for language, text in blocks:
            named = FILE.match(text)
            if named:
                path = crate / named[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                files += 1
        for language, text in blocks:
            if language != "sh" or any(command in text for command in TIERS):
                continue
            inside = text.startswith(f"# in {CRATE}\n")
            environment = dict(os.environ)
            if inside:
                environment["CARGO_TARGET_DIR"] = str(target / "readme")
                environment["CARGO_PROFILE_DEV_DEBUG"] = "0"
            finished = run(text, crate if inside else root, environment)
            print("\n".join(finished.stdout.splitlines()[-12:]), flush=True)
            ran += 1
            launched = launched or LAUNCHED in finished.stdout
            if finished.returncode != 0:
                failed += 1
                print(f"error: ended with {finished.returncode}")
    if not launched:
        print(f"error: no command printed {LAUNCHED}")
    print(f"{ran} blocks of commands, {failed} failed; {files} files in the reader's crate")
    return 0 if launched and ran and not failed else 1


sys.exit(main())
