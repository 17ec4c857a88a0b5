#!/usr/bin/env python3
"""PyTorch's side of whole training steps and of inference: one JSON request per line in, one answer per line out.

A request names a case by the options below, `{"detector": "fcos", "frozen_bn": true}`; what it leaves out is as on
the command line. The answer is {"seconds": s, "peak_bytes": b}: the shortest of `repeats` runs, and the most memory
that this process ever held. A case is built and run once, untimed, when it is first asked for, and kept until
another is: to compare memory, ask a process for one case only; to alternate cases, start one process for each.

A step is the teacher's forward pass and suppression on the images, the student's loss and its gradients, SGD with
momentum and weight decay, and the teacher's moving average. Contiguous tensors or channels-last: the peer's figure
is the better of the two.

Written for torch 2.11 and torchvision 0.26.
"""
import argparse
import copy
import json
import resource
import sys
import time

import torch
from torchvision.models import detection
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.feature_pyramid_network import LastLevelP6P7
from torchvision.ops.misc import FrozenBatchNorm2d


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", default="retinanet", choices=["retinanet", "fcos", "fasterrcnn"])
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--size", type=int, default=256, help="height and width of every image")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--boxes", type=int, default=8, help="per image")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1, help="timed runs per request")
    parser.add_argument("--channels-last", action="store_true", help="PyTorch's other memory format")
    parser.add_argument("--frozen-bn", action="store_true", help="batch norm by fixed statistics")
    parser.add_argument("--student-only", action="store_true", help="neither teacher nor moving average")
    parser.add_argument("--predict", action="store_true", help="inference alone")
    return vars(parser.parse_args())


def model(case):
    sides = dict(min_size=case["size"], max_size=case["size"])
    body = dict(
        backbone_name=case["backbone"],
        weights=None,
        norm_layer=FrozenBatchNorm2d if case["frozen_bn"] else torch.nn.BatchNorm2d,
        trainable_layers=5,
    )
    if case["detector"] == "fasterrcnn":
        # One class more: the background.
        return detection.FasterRCNN(resnet_fpn_backbone(**body), case["classes"] + 1, **sides)
    body = resnet_fpn_backbone(**body, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256))
    detector = {"retinanet": detection.RetinaNet, "fcos": detection.FCOS}[case["detector"]]
    return detector(body, case["classes"], **sides)


def scene(case):
    """Random images, and boxes of an eighth of their sides, more or less."""
    size, boxes = case["size"], case["boxes"]
    images = [torch.rand(3, size, size) for _ in range(case["batch"])]
    first = int(case["detector"] == "fasterrcnn")
    targets = []
    for _ in images:
        corner = torch.rand(boxes, 2) * size * 0.7
        extent = torch.rand(boxes, 2) * size * 0.25 + 8
        labels = torch.randint(first, case["classes"], (boxes,))
        targets.append({"boxes": torch.cat([corner, corner + extent], 1), "labels": labels})
    return images, targets


def prepare(case):
    """The work of the case, to be called again and again."""
    torch.manual_seed(0)
    torch.set_num_threads(case["threads"])
    student = model(case)
    if case["channels_last"]:
        student = student.to(memory_format=torch.channels_last)
    teacher = copy.deepcopy(student).eval()
    student.train()
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    images, targets = scene(case)

    def predict():
        with torch.no_grad():
            teacher(images)

    def learn():
        loss = sum(student(images, targets).values())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def step():
        predict()
        learn()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1e-3)

    if case["predict"]:
        return predict
    return learn if case["student_only"] else step


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main():
    by_default = options()
    asked, run = None, None
    for line in sys.stdin:
        case = by_default | json.loads(line)
        unknown = case.keys() - by_default.keys()
        if unknown:
            sys.exit(f"no such option: {', '.join(sorted(unknown))}")
        repeats = case.pop("repeats")
        if case != asked:
            # The case before is let go of first.
            run = None
            asked, run = case, prepare(case)
            run()
        seconds = min(timed(run) for _ in range(repeats))
        # Linux counts in units of 1024 bytes.
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
