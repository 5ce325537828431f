"""The scoring engine on a GPU: is it right there, does it follow the bank, and how fast is it?

    benchmarks/gpu_check.sh engine                          # one CUDA device, under four minutes
    benchmarks/gpu_check.sh engine --steps kernels,speed    # some of it
    benchmarks/gpu_check.sh engine --device cpu --quick     # the same path without a GPU

Everything is made on the spot. A step whose package is missing is skipped with the reason; one that
fails is reported, the others still run, and the exit status is 1. A missed target is no failure.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks import gpu_encoders, gpu_following, gpu_scan, gpu_speed
from benchmarks.figures import DEVICES, Figure, device_name, refusing, result_line
from benchmarks.gpu_steps import Place, Skipped
from retriever.device import Device
from retriever.errors import DeviceUnavailable
from retriever.kernels.torch_scan import TorchScanner

#: In the order they run. Each prints what it sees and returns its figures.
STEPS: Mapping[str, Callable[[Place], Mapping[str, Figure]]] = {
    "kernels": gpu_scan.kernels,
    "answers": gpu_scan.answers,
    "following": gpu_following.following,
    "large": gpu_scan.large,
    "speed": gpu_speed.speed,
    "searches": gpu_speed.searches,
    "tuning": gpu_speed.tuning,
    "encoder": gpu_encoders.torch_encoder,
    "onnx": gpu_encoders.onnx_encoder,
    "faiss": gpu_encoders.faiss_indexes,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps, print what each took, and end with the line of JSON; 1 where one failed."""
    options = parse(arguments)
    with refusing(DeviceUnavailable):
        scanner = TorchScanner(Device.parse(options.device))
    place = Place(scanner.device, options.quick, options.seed)
    print(f"scanner  {scanner.describe()}")
    figures: dict[str, Figure] = {}
    failed = []
    for name in options.steps:
        print(f"\n== {name}")
        started = time.perf_counter()
        try:
            figures |= STEPS[name](place)
            ended = "done"
        except Skipped as reason:
            ended = f"skipped: {reason}"
        except Exception:
            print(traceback.format_exc(limit=-4))
            ended = "FAILED"
            failed.append(name)
        seconds = time.perf_counter() - started
        print(f"{name}: {ended} ({seconds:.1f} s)", flush=True)
        place.tidy()
    figures["failed_steps"] = Figure(len(failed), "steps", 0, at_most=True)
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'no step failed'}")
    gpu = torch.cuda.get_device_name(place.device) if place.on_gpu else None
    print(result_line("gpu_engine", figures, torch=torch.__version__, gpu=gpu))
    return 1 if failed else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="The scoring engine on a GPU.")
    parser.add_argument("--device", type=device_name, default="cuda", help=DEVICES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the path work?")
    parser.add_argument(
        "--steps",
        type=lambda text: text.split(","),
        default=list(STEPS),
        help=f"some of {','.join(STEPS)}",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.steps if name not in STEPS]
    if unknown:
        parser.error(f"--steps {','.join(unknown)}: some of {','.join(STEPS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
