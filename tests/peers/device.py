"""What the comparisons on a GPU share: checked driver calls, captured graphs, device times."""

import statistics
import sys

import torch
from cuda.bindings import driver as cu


def check(result):
    """The value of a driver call; ends the program where it failed."""
    if result[0] != 0:
        sys.exit(f"CUDA driver: {result[0]}")
    return result[1] if len(result) > 1 else None


def graph(calls):
    """The calls captured in one CUDA graph, run twice before."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for call in calls:
            call()
    captured.replay()
    torch.cuda.synchronize()
    return captured


def measure(graphs, calls, replays=7, warm=True):
    """Median microseconds a call, the graphs taking turns; `warm` replays each before its turn."""
    times = {name: [] for name in graphs}
    for _ in range(replays):
        for name, captured in graphs.items():
            if warm:
                captured.replay()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            captured.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / calls * 1e3)
    return {name: statistics.median(t) for name, t in times.items()}
