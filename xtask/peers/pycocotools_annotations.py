#!/usr/bin/env python3
"""pycocotools' side of `cargo xtask bench annotations`: one JSON request in, one answer out.

The answer is {"load_s", "split_s", "peak_bytes"}; pycocotools cannot sparsify, so the split is what
a script would do: sample half of each category's annotations and write two dicts with `json`.

Written for pycocotools 2.0.11.
"""
import contextlib
import json
import os
import random
import sys
import time
from collections import defaultdict

from pycocotools.coco import COCO


def split(dataset, folder):
    by_category = defaultdict(list)
    for annotation in dataset["annotations"]:
        if not annotation["iscrowd"]:
            by_category[annotation["category_id"]].append(annotation["id"])
    hidden = {i for ids in by_category.values() for i in random.sample(ids, len(ids) // 2)}
    for name, is_hidden in [("kept.json", False), ("hidden.json", True)]:
        annotations = [a for a in dataset["annotations"] if (a["id"] in hidden) == is_hidden]
        with open(os.path.join(folder, name), "w") as out:
            # Several times faster than `json.dump`, which encodes in Python.
            out.write(json.dumps({**dataset, "annotations": annotations}))


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def main():
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            coco = COCO(request["file"])
        load_s = time.perf_counter() - start
        start = time.perf_counter()
        if request["split_to"]:
            split(coco.dataset, request["split_to"])
        split_s = time.perf_counter() - start
        print(json.dumps({"load_s": load_s, "split_s": split_s, "peak_bytes": peak_bytes()}), flush=True)


if __name__ == "__main__":
    main()
