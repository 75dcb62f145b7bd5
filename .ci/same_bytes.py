"""Compares two builds of the kernels, the second of a part of the first's variants: every file and
every record of the second's manifest must be in the first, the same to the byte. Records of texts
that no compiler took hold nothing more than the text.

Usage: same_bytes.py WHOLE PART
"""

import json
import pathlib
import sys


def variants(folder):
    """What a manifest says of each variant, and of each kernel, by name."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    records = {}
    for kernel in manifest["kernels"]:
        name = f"{kernel['name']} {kernel['instance']}".strip()
        records[name] = {key: value for key, value in kernel.items() if key != "targets"}
        for target, record in kernel["targets"].items():
            for variant in record["variants"]:
                if variant["status"] == "ok" and not variant["checked_by"]:
                    continue
                records[f"{name} {target} {variant['profile']} {variant['arch']}"] = variant
    return records


def main():
    whole, part = (pathlib.Path(folder) for folder in sys.argv[1:3])
    faults = []
    files = [path.relative_to(part) for path in part.rglob("*") if path.is_file()]
    files.remove(pathlib.Path("manifest.json"))
    for path in files:
        other = whole / path
        if not other.is_file():
            faults.append(f"{path}: in the second build only")
        elif other.read_bytes() != (part / path).read_bytes():
            faults.append(f"{path}: differs")
    expected, found = variants(whole), variants(part)
    for name, record in found.items():
        if expected.get(name) != record:
            faults.append(f"{name}: {record} in the second build, {expected.get(name)} in the first")
    print("\n".join(faults[:20]))
    print(f"{len(files)} files and {len(found)} records of the manifest, {len(faults)} differences")
    return 1 if faults or not files or not found else 0


sys.exit(main())
