"""What the usual Python packages say of the GPU while this process has some of its memory, as one
line of JSON. Process numbers become "own" and "other", so that two runs can be compared. For a
line on standard input it then takes all that it is given, says how much that was, and keeps it
until standard input is closed.
"""

import json
import os
import re
import subprocess
import sys

import nvitop
import pynvml
from cuda.bindings import driver

MIB = 1 << 20
HELD = 128 * MIB
BLOCK = 64 * MIB


def given(answer):
    """The results of a call of the driver that must succeed."""
    code, *results = answer
    assert code == driver.CUresult.CUDA_SUCCESS, answer
    return results[0] if len(results) == 1 else results


def who(pid):
    return "own" if int(pid) == os.getpid() else "other"


def take():
    """As many blocks as cuda-bindings is given, and what it is told then."""
    blocks = []
    while True:
        code, address = driver.cuMemAlloc(BLOCK)
        if code != driver.CUresult.CUDA_SUCCESS:
            return blocks, code.name
        blocks.append(address)


def bindings():
    """cuda-bindings: what there is."""
    device = given(driver.cuDeviceGet(0))
    free, total = given(driver.cuMemGetInfo())
    return {
        "devices": given(driver.cuDeviceGetCount()),
        "name": given(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode(),
        "total": given(driver.cuDeviceTotalMem(device)),
        "info": [free, total],
    }


def nvml():
    """nvidia-ml-py."""
    pynvml.nvmlInit()
    cards = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        card = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(card)
        newer = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        cards.append({
            "name": pynvml.nvmlDeviceGetName(card),
            "bus": pynvml.nvmlDeviceGetPciInfo(card).busId,
            "memory": [memory.total, memory.used, memory.free],
            "memory_v2": [newer.total, newer.used, newer.free, newer.reserved],
            "bar1": pynvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Used,
            "mig": pynvml.nvmlDeviceGetMigMode(card),
            "processes": [[who(one.pid), one.usedGpuMemory] for one in processes],
        })
    pynvml.nvmlShutdown()
    return cards


def command(*words):
    words = [sys.executable, "-m", *words]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def gpustat():
    """gpustat, as people call it."""
    return [
        {
            "name": card["name"],
            "total": card["memory.total"],
            "used": card["memory.used"],
            "processes": [[who(one["pid"]), one["gpu_memory_usage"]] for one in card["processes"]],
        }
        for card in json.loads(command("gpustat", "--json"))["gpus"]
    ]


def nvitop_screen():
    """nvitop, as people call it: the memory of each card, and the lines of processes."""
    text = command("nvitop", "--once", "--no-unicode")
    processes = re.findall(r"^\| +\d+ +(\d+) +\w+ +\S+ +(\S+)", text, re.MULTILINE)
    return {
        "memory": re.findall(r"(\S+) / (\d+MiB) \|", text),
        "processes": [[who(pid), memory] for pid, memory in processes],
    }


def nvitop_devices():
    """nvitop, as programs call it."""
    return [
        {
            "total": card.memory_total(),
            "used": card.memory_used(),
            "free": card.memory_free(),
            "processes": [[who(pid), one.gpu_memory()] for pid, one in card.processes().items()],
        }
        for card in nvitop.Device.all()
    ]


def main():
    given(driver.cuInit(0))
    context = given(driver.cuDevicePrimaryCtxRetain(given(driver.cuDeviceGet(0))))
    given(driver.cuCtxSetCurrent(context))
    held = given(driver.cuMemAlloc(HELD))
    views = [bindings, nvml, gpustat, nvitop_screen, nvitop_devices]
    print(json.dumps({view.__name__: view() for view in views}), flush=True)
    if sys.stdin.readline():
        blocks, refusal = take()
        print(json.dumps({"bytes": HELD + len(blocks) * BLOCK, "refusal": refusal}), flush=True)
        sys.stdin.read()
        for block in blocks:
            given(driver.cuMemFree(block))
    given(driver.cuMemFree(held))


main()
