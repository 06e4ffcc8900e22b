#!/usr/bin/env python3
"""What a PyTorch user runs, as one JSON line: ResNet-50 training in eager mode, the same step as
a CUDA graph, plain matrix products (cuBLAS), and how much memory PyTorch gets.

It needs only PyTorch: the network is built here, the data is random. It knows nothing of
Sublet, so that it can be run with and without it and the two lines compared.

Exit codes: 0 done, 1 the card or PyTorch said no (the line says what), 2 wrong arguments,
3 PyTorch is missing.
"""

import argparse
import json
import os
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as why:
    sys.stderr.write(
        "torch_mix.py: PyTorch cannot be imported (%s); install it with `pip install torch`, "
        "for a CUDA version that the driver here supports\n" % why
    )
    sys.exit(3)

MIB = 1 << 20
# The blocks of each stage and the width of their middle: He et al. 2015, table 1, 50 layers.
RESNET_50 = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions with a way around them; the middle one does the stride."""

    def __init__(self, n_in, width, stride):
        super().__init__()
        n_out = width * EXPANSION
        self.path = nn.Sequential(
            nn.Conv2d(n_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, n_out, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        self.around = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.around = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(n_out),
            )
        self.end = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.end(self.path(x) + self.around(x))


def resnet_50(n_classes=1000):
    """ResNet-50 with random weights: 25,557,032 parameters."""
    layers = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    n_in = 64
    for stage, (n_blocks, width) in enumerate(RESNET_50):
        for block in range(n_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(n_in, width, stride))
            n_in = width * EXPANSION
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, n_classes)]
    return nn.Sequential(*layers)


class Training:
    """One training step on one random batch, which is all that a measurement needs."""

    def __init__(self, args, device):
        self.model = resnet_50().to(device)
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        shape = (args.batch, 3, args.image, args.image)
        self.images = torch.randn(shape, device=device)
        self.labels = torch.randint(0, 1000, (args.batch,), device=device)
        self.bf16 = args.precision == "bf16"
        self.device = device
        self.last = None

    def step(self):
        # In a graph the gradients must keep their addresses, so they are zeroed, not dropped.
        self.optimizer.zero_grad(set_to_none=False)
        kind = self.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            self.last = self.loss(self.model(self.images), self.labels)
        self.last.backward()
        self.optimizer.step()


def first_line(why):
    return (str(why).splitlines() or [""])[0]


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(step, args, device):
    """Steps and seconds, after a warm-up, for as long as asked."""
    for _ in range(args.warm_up):
        step()
    synchronize(device)
    begin = time.perf_counter()
    steps = 0
    while steps < args.steps and time.perf_counter() - begin < args.seconds:
        # A few at a time: asking the clock must not make the queue run dry.
        for _ in range(min(args.together, args.steps - steps)):
            step()
            steps += 1
        synchronize(device)
        if args.verbose:
            sys.stderr.write("torch_mix.py: %d steps\n" % steps)
    return steps, time.perf_counter() - begin


def rates(steps, seconds):
    return {"steps": steps, "seconds": seconds, "stepsPerSecond": steps / seconds}


def eager(args, device):
    training = Training(args, device)
    figures = rates(*measure(training.step, args, device))
    figures["imagesPerSecond"] = figures["stepsPerSecond"] * args.batch
    figures["loss"] = float(training.last.detach())
    return figures


def graphs(args, device):
    if device.type != "cuda":
        raise RuntimeError("CUDA graphs need a CUDA device")
    training = Training(args, device)
    # PyTorch wants the first steps, which choose algorithms, on a stream beside the capture's.
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.step()
    figures = rates(*measure(graph.replay, args, device))
    figures["imagesPerSecond"] = figures["stepsPerSecond"] * args.batch
    figures["loss"] = float(training.last.detach())
    return figures


def matmul(args, device):
    kind = torch.bfloat16 if args.precision == "bf16" else torch.float32
    n = args.size
    left = torch.randn((n, n), device=device, dtype=kind)
    right = torch.randn((n, n), device=device, dtype=kind)
    into = torch.empty((n, n), device=device, dtype=kind)
    figures = rates(*measure(lambda: torch.matmul(left, right, out=into), args, device))
    figures["teraflops"] = figures["stepsPerSecond"] * 2 * n**3 / 1e12
    return figures


def memory(args, device):
    """Takes memory in blocks, halving them at each refusal, until less than 2 MiB is left."""
    if device.type != "cuda":
        raise RuntimeError("--program memory needs a CUDA device: it takes all there is")
    size = args.block * MIB
    blocks = []
    refusals = 0
    said = None
    while size >= 2 * MIB:
        try:
            blocks.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.cuda.OutOfMemoryError as why:
            refusals += 1
            said = first_line(why)
            size //= 2
    return {
        "bytes": sum(block.numel() for block in blocks),
        "blocks": len(blocks),
        "refusals": refusals,
        "refused": said,
        "held": card_memory(device),
    }


PROGRAMS = {"eager": eager, "graphs": graphs, "matmul": matmul, "memory": memory}


def card_memory(device):
    """Memory as cudaMemGetInfo and as PyTorch's allocator tell it, in bytes."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return {
        "free": free,
        "total": total,
        "totalOfProperties": torch.cuda.get_device_properties(device).total_memory,
        "allocatedPeak": torch.cuda.max_memory_allocated(device),
        "reservedPeak": torch.cuda.max_memory_reserved(device),
    }


def whole(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("%s is not at least 1" % text)
    return number


def parse(words):
    parser = argparse.ArgumentParser(
        description="PyTorch workloads that print one JSON line",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--program", choices=[*PROGRAMS, "all"], default="all", help="`all` leaves out memory")
    add("--device", default="cuda:0", help="as PyTorch names it; `cpu` only tries the script")
    add("--steps", type=whole, default=100, help="steps that are measured, at most")
    add("--seconds", type=float, default=60.0, help="a program ends after so long")
    add("--warm-up", type=whole, default=10, help="steps before that")
    add("--together", type=whole, default=5, help="steps between two looks at the clock")
    add("--batch", type=whole, default=64, help="images of a batch")
    add("--image", type=whole, default=224, help="points along an image's side")
    add("--size", type=whole, default=8192, help="rows of a matrix")
    add("--block", type=whole, default=1024, help="MiB of the first blocks of `memory`")
    add("--precision", choices=["fp32", "tf32", "bf16"], default="tf32", help="of products")
    add("--seed", type=int, default=1, help="of the random numbers")
    add("--verbose", action="store_true", help="say on stderr how it is going")
    return parser.parse_args(words)


def run(args, line):
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    exact = args.precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    if device.type == "cuda":
        torch.cuda.set_device(device)
        line["card"] = torch.cuda.get_device_name(device)
        line["memoryBefore"] = card_memory(device)
    chosen = [name for name in PROGRAMS if name != "memory"]
    for name in chosen if args.program == "all" else [args.program]:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        line[name] = PROGRAMS[name](args, device)
        line[name]["memory"] = card_memory(device)


def main(words):
    args = parse(words)
    line = {
        "program": "torch_mix",
        "pid": os.getpid(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "precision": args.precision,
    }
    code = 0
    try:
        run(args, line)
        line["ok"] = True
        line["error"] = None
    except (RuntimeError, AssertionError, ValueError) as why:
        # PyTorch raises these three for everything that a device refuses.
        line["ok"] = False
        line["error"] = {"kind": type(why).__name__, "why": first_line(why)}
        sys.stderr.write("torch_mix.py: %s\n" % line["error"]["why"])
        code = 1
    print(json.dumps(line), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
