#!/usr/bin/env python3
"""What a PyTorch user runs, as one JSON line: training of a network in eager mode, the same step
as a CUDA graph, answering requests, plain matrix products (cuBLAS), and how much memory PyTorch
gets.

It needs only PyTorch: the networks are built here, the data is random. It knows nothing of
Sublet, so that it can be run with and without it and the two lines compared. Several can be made
to measure over the same seconds (--begin).

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
# Devlin et al. 2019, BERT-base: layers, width, heads, and the words that it knows.
BERT_BASE = (12, 768, 12, 30522)
# Redmon and Farhadi 2018, table 1: the blocks of each stage of Darknet-53.
DARKNET_53 = (1, 2, 8, 8, 4)


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


class Bert(nn.Module):
    """BERT-base that sorts sentences into two classes."""

    def __init__(self, n_tokens):
        super().__init__()
        n_layers, width, n_heads, n_words = BERT_BASE
        self.words = nn.Embedding(n_words, width)
        self.places = nn.Parameter(torch.randn(n_tokens, width) / 100)
        layer = nn.TransformerEncoderLayer(
            width, n_heads, 4 * width, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.end = nn.Linear(width, 2)

    def forward(self, words):
        x = self.layers(self.words(words) + self.places)
        return self.end(x[:, 0])


def convolution(n_in, n_out, size, stride=1):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(n_out),
        nn.LeakyReLU(0.1, inplace=True),
    )


class Residual(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.path = nn.Sequential(convolution(n, n // 2, 1), convolution(n // 2, n, 3))

    def forward(self, x):
        return x + self.path(x)


def yolo():
    """Darknet-53 and one of YOLOv3's heads: three boxes of 85 numbers at each place."""
    layers = [convolution(3, 32, 3)]
    n = 32
    for n_blocks in DARKNET_53:
        layers.append(convolution(n, 2 * n, 3, stride=2))
        n *= 2
        layers += [Residual(n) for _ in range(n_blocks)]
    return nn.Sequential(*layers, nn.Conv2d(n, 3 * 85, 1))


class Network:
    """A network and one random batch for it, which is all that a measurement needs."""

    def __init__(self, args, device):
        n, image = args.batch, (3, args.image, args.image)
        if args.model == "resnet50":
            n = n or 64
            self.model, self.batch = resnet_50(), torch.randn((n, *image), device=device)
            labels = torch.randint(0, 1000, (n,), device=device)
            self.loss = lambda answers: nn.functional.cross_entropy(answers, labels)
        elif args.model == "bert":
            n = n or 32
            self.model = Bert(args.tokens)
            self.batch = torch.randint(0, BERT_BASE[3], (n, args.tokens), device=device)
            labels = torch.randint(0, 2, (n,), device=device)
            self.loss = lambda answers: nn.functional.cross_entropy(answers, labels)
        else:
            n = n or 16
            self.model, self.batch = yolo(), torch.randn((n, *image), device=device)
            self.loss = lambda answers: answers.square().mean()
        self.model = self.model.to(device)
        self.size = n


class Training:
    """Training steps of a network, on one batch."""

    def __init__(self, args, device):
        network = Network(args, device)
        self.model, self.loss, self.batch = network.model, network.loss, network.batch
        self.size = network.size
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.bf16 = args.precision == "bf16"
        self.device = device
        self.last = None

    def step(self):
        # In a graph the gradients must keep their addresses, so they are zeroed, not dropped.
        self.optimizer.zero_grad(set_to_none=False)
        kind = self.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            self.last = self.loss(self.model(self.batch))
        self.last.backward()
        self.optimizer.step()


def first_line(why):
    return (str(why).splitlines() or [""])[0]


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def beginning(step, args, device):
    """When the measurement begins, by the monotonic clock: after a warm-up, or at a moment that
    somebody else chooses for several programs. It works until then."""
    for _ in range(args.warm_up):
        step()
    synchronize(device)
    if args.begin is None:
        return time.monotonic()
    print(json.dumps({"ready": True}), flush=True)
    while not os.path.exists(args.begin):
        step()
        synchronize(device)
    with open(args.begin) as file:
        begin = float(file.read())
    while time.monotonic() < begin:
        step()
        synchronize(device)
    return begin


def measure(step, args, device):
    """Steps and seconds, for as long as asked."""
    begin = beginning(step, args, device)
    steps = 0
    while steps < args.steps and time.monotonic() - begin < args.seconds:
        # A few at a time: asking the clock must not make the queue run dry.
        for _ in range(min(args.together, args.steps - steps)):
            step()
            steps += 1
        synchronize(device)
        if args.verbose:
            sys.stderr.write("torch_mix.py: %d steps\n" % steps)
    return steps, time.monotonic() - begin


def rates(steps, seconds):
    return {"steps": steps, "seconds": seconds, "stepsPerSecond": steps / seconds}


def eager(args, device):
    training = Training(args, device)
    figures = rates(*measure(training.step, args, device))
    figures["samplesPerSecond"] = figures["stepsPerSecond"] * training.size
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
    figures["samplesPerSecond"] = figures["stepsPerSecond"] * training.size
    figures["loss"] = float(training.last.detach())
    return figures


def serve(args, device):
    """Requests that come at fixed moments, and the time from then until each is answered: who is
    late makes the next ones wait."""
    network = Network(args, device)
    network.model.eval()

    def request():
        with torch.inference_mode():
            network.model(network.batch)
        synchronize(device)

    due = beginning(request, args, device)
    end = due + args.seconds
    times = []
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        request()
        times.append((time.monotonic() - due) * 1000)
        due += args.interval / 1000
    times.sort()

    def slowest(hundredths):
        return times[min(len(times) - 1, len(times) * hundredths // 100)]

    return {"requests": len(times), "p50Ms": slowest(50), "p99Ms": slowest(99)}


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


PROGRAMS = {
    "eager": eager,
    "graphs": graphs,
    "matmul": matmul,
    "serve": serve,
    "memory": memory,
}
# What `all` is.
RATES = ("eager", "graphs", "matmul")


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
    add("--program", choices=[*PROGRAMS, "all"], default="all", help="`all`: the first three")
    add("--model", choices=["resnet50", "bert", "yolo"], default="resnet50", help="the network")
    add("--device", default="cuda:0", help="as PyTorch names it; `cpu` only tries the script")
    add("--steps", type=whole, default=100, help="steps that are measured, at most")
    add("--seconds", type=float, default=60.0, help="a program ends after so long")
    add("--warm-up", type=whole, default=10, help="steps before that")
    add("--together", type=whole, default=5, help="steps between two looks at the clock")
    add("--begin", metavar="FILE", help="say `ready`, and measure from the moment in this file")
    add("--interval", type=float, default=20.0, help="milliseconds between two requests")
    add("--batch", type=whole, help="samples of a batch (by the network: 64, 32, 16)")
    add("--tokens", type=whole, default=128, help="words of a sentence")
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
    for name in RATES if args.program == "all" else [args.program]:
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
