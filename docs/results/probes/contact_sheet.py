"""A contact sheet of recovered boxes that match no annotation. Needs Pillow. docs/RESULTS.md has the commands.

    python contact_sheet.py COMPLETED.json TRUTH.json IMAGES OUT.png [HOW_MANY]

COMPLETED.json: annotations with boxes recovered by `lacuna complete` (`"recovered": true`). Recovered boxes that overlap no given
annotation and no box of TRUTH.json at IoU 0.5 are sampled (100, always the same) and drawn red, the annotations green.
"""

import json
import random
import sys
from collections import defaultdict
from pathlib import Path

from PIL import Image, ImageDraw

AROUND, SIDE, COLUMNS = 90, 186, 10  # pixels of the image to each side; pixels of a cell of the sheet; cells in a row


def iou(a, b):
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def boxes(data, wanted):
    names = {image["id"]: image["file_name"] for image in data["images"]}
    return [(names[a["image_id"]], a["bbox"]) for a in data["annotations"] if bool(a.get("recovered")) == wanted]


def cell(image, box, others):
    draw = ImageDraw.Draw(image)
    for (left, top, width, height), color in [(other, "green") for other in others] + [(box, "red")]:
        draw.rectangle([left, top, left + width, top + height], outline=color, width=3)
    x, y = int(box[0] + box[2] / 2), int(box[1] + box[3] / 2)
    return image.crop((x - AROUND, y - AROUND, x + AROUND, y + AROUND)).resize((SIDE, SIDE))


def main(completed, truth, images, out, how_many="100"):
    completed, truth = (json.loads(Path(path).read_text()) for path in (completed, truth))
    known = defaultdict(list)
    for name, box in boxes(truth, False) + boxes(completed, False):
        known[name].append(box)
    added = boxes(completed, True)
    others = [(name, box) for name, box in added if all(iou(box, other) < 0.5 for other in known[name])]
    print(f"{len(added)} boxes added, {len(others)} of them match no annotation")
    random.seed(1)
    shown = random.sample(others, min(int(how_many), len(others)))
    sheet = Image.new("RGB", (COLUMNS * (SIDE + 4), -(-len(shown) // COLUMNS) * (SIDE + 4)), "white")
    for at, (name, box) in enumerate(shown):
        image = Image.open(Path(images) / name).convert("RGB")
        sheet.paste(cell(image, box, known[name]), (at % COLUMNS * (SIDE + 4), at // COLUMNS * (SIDE + 4)))
    sheet.save(out)


main(*sys.argv[1:])
