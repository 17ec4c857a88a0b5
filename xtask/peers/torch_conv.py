#!/usr/bin/env python3
"""PyTorch's side of `cargo xtask bench conv`: one JSON request per line in, one answer per line out.

Each answer is {"seconds": [s, …]}: a timing of the contiguous and one of the channels-last memory format (or of the only one
there is), each run until it is long enough to measure. Tensors of a case are kept until another case
is asked for, so that only the work itself is timed.

Written for torch 2.11 and torchvision 0.26.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torchvision.ops import sigmoid_focal_loss


def conv(r, memory_format, block):
    def images(size):
        x = torch.randn(r["batch"], r["in_channels"], size, size).to(memory_format=memory_format)
        return x.requires_grad_(r["input_gradient"])

    xs = [images(size) for size in r["sizes"]]
    w = torch.randn(r["out_channels"], r["in_channels"], r["kernel"], r["kernel"]).to(memory_format=memory_format)
    w.requires_grad_()
    scale = torch.randn(1, r["out_channels"], 1, 1)
    shift = torch.randn(1, r["out_channels"], 1, 1)

    def forward(x):
        y = F.conv2d(x, w, stride=r["stride"], padding=r["kernel"] // 2)
        # As torchvision's FrozenBatchNorm2d, then ReLU in place.
        return F.relu_(y * scale + shift) if block else y

    dys = [torch.randn_like(forward(x)) for x in xs]

    def run():
        w.grad = None
        for x in xs:
            x.grad = None
        torch.autograd.backward([forward(x) for x in xs], dys)

    return run


def max_pool(memory_format):
    x = torch.randn(4, 64, 128, 128).to(memory_format=memory_format).requires_grad_()
    dy = torch.randn_like(F.max_pool2d(x, 3, 2, 1))

    def run():
        x.grad = None
        F.max_pool2d(x, 3, 2, 1).backward(dy)

    return run


def norm(r, memory_format):
    c, groups = r["channels"], r["groups"]
    xs = [torch.randn(r["batch"], c, size, size).to(memory_format=memory_format).requires_grad_() for size in r["sizes"]]
    weight, bias = torch.randn(c, requires_grad=True), torch.randn(c, requires_grad=True)
    mean, variance = torch.zeros(c), torch.ones(c)

    def forward():
        if groups:
            return [F.relu_(F.group_norm(x, groups, weight, bias)) for x in xs]
        return [F.relu_(F.batch_norm(x, mean, variance, weight, bias, training=True)) for x in xs]

    dys = [torch.randn_like(y) for y in forward()]

    def run():
        weight.grad = bias.grad = None
        for x in xs:
            x.grad = None
        torch.autograd.backward(forward(), dys)

    return run


def focal():
    x = torch.randn(4 * 12276, 80).requires_grad_()
    t = torch.zeros(4 * 12276, 80)
    rows = torch.arange(0, 4 * 12276, 50)
    t[rows, rows % 80] = 1

    def run():
        x.grad = None
        sigmoid_focal_loss(x, t, reduction="sum").backward()

    return run


def sgd(r):
    parameters = [torch.randn(r["size"]).requires_grad_() for _ in range(r["tensors"])]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.SGD(parameters, lr=1e-9, momentum=0.9, weight_decay=1e-4)
    return optimizer.step


def ema(r):
    averages = [torch.randn(r["size"]) for _ in range(r["tensors"])]
    values = [torch.randn(r["size"]) for _ in range(r["tensors"])]
    return lambda: torch._foreach_lerp_(averages, values, 1e-3)


def prepare(r):
    formats = [torch.contiguous_format, torch.channels_last]
    if r["kind"] in ("conv", "block"):
        return [conv(r, f, r["kind"] == "block") for f in formats]
    if r["kind"] == "max_pool":
        return [max_pool(f) for f in formats]
    if r["kind"] == "norm":
        return [norm(r, f) for f in formats]
    return [{"focal": lambda: focal(), "sgd": lambda: sgd(r), "ema": lambda: ema(r)}[r["kind"]]()]


def timed(run, threads):
    # As our side is timed: a first run does not count; one thread is timed by the processor's time, several by the clock.
    run()
    clock = time.process_time if threads == 1 else time.perf_counter
    start, begun, runs = clock(), time.perf_counter(), 0
    while runs == 0 or time.perf_counter() - begun < 0.02:
        run()
        runs += 1
    return (clock() - start) / runs


def main():
    torch.manual_seed(0)
    asked, runs = None, []
    for line in sys.stdin:
        request = json.loads(line)
        if request != asked:
            torch.set_num_threads(request["threads"])
            asked, runs = request, prepare(request)
            for run in runs:
                run()
        print(json.dumps({"seconds": [timed(run, request["threads"]) for run in runs]}), flush=True)


if __name__ == "__main__":
    main()
