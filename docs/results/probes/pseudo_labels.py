"""Pseudo labels added to annotations in four ways, to measure what each is worth. docs/RESULTS.md has the commands.

    python pseudo_labels.py SPARSE.json HIDDEN.json FOUND.json OUT

FOUND.json: detections of a trained teacher in the images of SPARSE.json, with confidences (`lacuna predict`). Those above 0.7
that Calibrated Teacher would use as pseudo labels are added to the annotations of SPARSE.json. A pseudo label is right if it
is a hidden box at IoU 0.5; the highest scores are matched first, each to one box.

    OUT/right-true.json       right ones, with the hidden boxes
    OUT/right-predicted.json  right ones, with the teacher's boxes
    OUT/all-true.json         all, right ones with the hidden boxes
    OUT/all-predicted.json    all, with the teacher's boxes
"""

import copy
import json
import sys
from collections import defaultdict
from pathlib import Path


def overlap(a, b):
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(width, 0) * max(height, 0)


def area(a):
    return a[2] * a[3]


def iou(a, b):
    shared = overlap(a, b)
    return shared / (area(a) + area(b) - shared)


def by_image(records):
    images = defaultdict(list)
    for record in records:
        images[record["image_id"]].append(record)
    return images


def main(sparse, hidden, found, out):
    sparse, hidden, found = (json.loads(Path(path).read_text()) for path in (sparse, hidden, found))
    given, missing = by_image(sparse["annotations"]), by_image(hidden["annotations"])
    right, wrong, taken = [], [], set()
    for detection in sorted(found, key=lambda detection: -detection["score"]):
        box, image = detection["bbox"], detection["image_id"]
        of_class = lambda records: [r for r in records[image] if r["category_id"] == detection["category_id"]]
        near = any(iou(box, other["bbox"]) >= 0.6 for other in of_class(given))
        duplicate = any(iou(box, other["bbox"]) > 0.75 for other in given[image])
        contained = any(
            overlap(box, other["bbox"]) > 0.9 * min(area(box), area(other["bbox"])) for other in of_class(given)
        )
        if detection["confidence"] <= 0.7 or near or duplicate or contained:
            continue
        best = max(of_class(missing), key=lambda other: iou(box, other["bbox"]), default=None)
        if best is not None and iou(box, best["bbox"]) >= 0.5 and best["id"] not in taken:
            taken.add(best["id"])
            right.append((best, detection))
        else:
            wrong.append(detection)
    print(f"{len(right)} of {len(hidden['annotations'])} hidden boxes are pseudo labels; {len(wrong)} others are")

    true, predicted = [best for best, _ in right], [detection for _, detection in right]
    files = {
        "right-true": true,
        "right-predicted": predicted,
        "all-true": true + wrong,
        "all-predicted": predicted + wrong,
    }
    next_id = 1 + max(record["id"] for record in sparse["annotations"] + hidden["annotations"])
    Path(out).mkdir(exist_ok=True)
    for name, added in files.items():
        completed = copy.deepcopy(sparse)
        for at, record in enumerate(added):
            kept = {key: record[key] for key in ("image_id", "category_id", "bbox")}
            completed["annotations"].append({"id": next_id + at, "area": area(record["bbox"]), "iscrowd": 0, **kept})
        (Path(out) / f"{name}.json").write_text(json.dumps(completed))


main(*sys.argv[1:])
