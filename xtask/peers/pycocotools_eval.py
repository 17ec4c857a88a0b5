#!/usr/bin/env python3
"""pycocotools' side of `cargo xtask bench eval`: one JSON request in, one answer out.

The answer is {"load_s", "evaluate_s", "stats"}: reading both files, then matching, accumulating and
summarizing, and COCO's twelve numbers.

Written for pycocotools 2.0.11.
"""
import contextlib
import json
import sys
import time

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def main():
    for line in sys.stdin:
        request = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            start = time.perf_counter()
            truth = COCO(request["annotations"])
            found = truth.loadRes(request["detections"])
            load_s = time.perf_counter() - start
            start = time.perf_counter()
            evaluation = COCOeval(truth, found, "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            evaluate_s = time.perf_counter() - start
        stats = [float(stat) for stat in evaluation.stats]
        print(json.dumps({"load_s": load_s, "evaluate_s": evaluate_s, "stats": stats}), flush=True)


if __name__ == "__main__":
    main()
