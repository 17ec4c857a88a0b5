#!/usr/bin/env python3
"""PyTorch's side of `cargo xtask bench loader`: one JSON request per line in, one answer per line out.

Each answer is the time of one epoch, {"seconds": s}, from a DataLoader whose workers persist from
one epoch to the next; the first request has an epoch more, which is not timed. A worker decodes,
resizes twice, flips, changes the strong view's colors (one of nine operations), normalizes, and
stacks both views, padded to a multiple of 32. PyTorch sets each worker to one thread.

Written for torch 2.11, torchvision 0.26 and Pillow 13.
"""
import json
import os
import random
import sys
import time

import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def photometric(image):
    def factor():
        return random.uniform(0.28, 1.72)

    return random.choice(
        [
            lambda: image,
            lambda: ImageOps.autocontrast(image),
            lambda: ImageOps.equalize(image),
            lambda: ImageOps.solarize(image, random.randint(25, 230)),
            lambda: ImageEnhance.Color(image).enhance(factor()),
            lambda: ImageEnhance.Contrast(image).enhance(factor()),
            lambda: ImageEnhance.Brightness(image).enhance(factor()),
            lambda: ImageEnhance.Sharpness(image).enhance(factor()),
            lambda: ImageOps.posterize(image, random.randint(1, 4)),
        ]
    )()


class Views(Dataset):
    """Both views of each image, normalized."""

    def __init__(self, request):
        self.folder = request["images"]
        with open(request["annotations"]) as file:
            self.records = json.load(file)["images"]
        self.short_side, self.long_side_max = request["short_side"], request["long_side_max"]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        image = Image.open(os.path.join(self.folder, self.records[index]["file_name"])).convert("RGB")
        return self.view(image, strong=False), self.view(image, strong=True)

    def view(self, image, strong):
        scale = min(self.short_side / min(image.size), self.long_side_max / max(image.size))
        size = tuple(int(side * scale + 0.5) for side in image.size)
        view = image.resize(size, Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if strong:
            view = photometric(view)
        return F.normalize(F.to_tensor(view), MEAN, STD, inplace=True)


class SimilarShapes:
    """Batches in random order, of wide images or of tall ones, as our loader has them."""

    def __init__(self, records, size):
        self.wide = [r["width"] >= r["height"] for r in records]
        self.size = size

    def __len__(self):
        return (len(self.wide) + self.size - 1) // self.size

    def __iter__(self):
        groups = {True: [], False: []}
        for index in torch.randperm(len(self.wide)).tolist():
            group = groups[self.wide[index]]
            group.append(index)
            if len(group) == self.size:
                yield group[:]
                group.clear()
        rest = groups[True] + groups[False]
        for start in range(0, len(rest), self.size):
            yield rest[start : start + self.size]


def stack(pairs):
    return [padded(views) for views in zip(*pairs)]


def padded(views):
    height, width = (32 * -(-max(view.shape[side] for view in views) // 32) for side in (1, 2))
    block = torch.zeros(len(views), 3, height, width)
    for place, view in zip(block, views):
        place[:, : view.shape[1], : view.shape[2]].copy_(view)
    return block


def epoch(loader):
    start = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start


def main():
    loader = None
    for line in sys.stdin:
        request = json.loads(line)
        if loader is None:
            dataset = Views(request)
            loader = DataLoader(
                dataset,
                batch_sampler=SimilarShapes(dataset.records, request["batch_size"]),
                collate_fn=stack,
                num_workers=request["workers"],
                prefetch_factor=request["prefetch"],
                persistent_workers=True,
            )
            epoch(loader)
        print(json.dumps({"seconds": epoch(loader)}), flush=True)


if __name__ == "__main__":
    main()
