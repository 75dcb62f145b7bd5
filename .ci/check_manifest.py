"""Checks a manifest of the full matrix: enough kernels, every target, nothing failed or unchecked.

Usage: check_manifest.py MANIFEST
"""

import json
import sys

PROFILES = {
    "msl": {"metal3.1"},
    "cuda": {"sm_80", "sm_90a", "sm_100a"},
    "hip": {"gfx90a", "gfx942", "gfx1100"},
    "spirv": {"vulkan1.3", "spirv-small", "spirv-descriptor"},
}
LEAST_KERNELS = 40


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        manifest = json.load(file)
    faults = []
    counts = {}
    for kernel in manifest["kernels"]:
        name = f"{kernel['name']} {kernel['instance']}".strip()
        for target, profiles in PROFILES.items():
            record = kernel["targets"].get(target)
            if record is None:
                faults.append(f"{name}: no entry for {target}")
                continue
            key = (target, record["status"])
            counts[key] = counts.get(key, 0) + 1
            missing = profiles - {variant["profile"] for variant in record["variants"]}
            if missing:
                faults.append(f"{name} {target}: no variant for {', '.join(sorted(missing))}")
            for variant in record["variants"]:
                where = f"{name} {target} {variant['profile']}"
                if variant["status"] == "ok" and not variant["checked_by"]:
                    faults.append(f"{where}: lowered, but no compiler checked it")
                elif variant["status"] == "unsupported" and not variant.get("reason"):
                    faults.append(f"{where}: unsupported without a reason")
                elif variant["status"] == "failed":
                    faults.append(f"{where}: failed: {variant.get('reason')}")
    names = {kernel["name"] for kernel in manifest["kernels"]}
    if len(names) < LEAST_KERNELS:
        faults.append(f"{len(names)} kernels, expected at least {LEAST_KERNELS}")
    for (target, status), count in sorted(counts.items()):
        print(f"{target}: {count} {status}")
    dtypes = sorted({kernel["dtype"] for kernel in manifest["kernels"]})
    print(f"{len(names)} kernels, {len(manifest['kernels'])} instances, dtypes {', '.join(dtypes)}")
    for fault in faults:
        print(f"error: {fault}")
    return 1 if faults else 0


sys.exit(main())
