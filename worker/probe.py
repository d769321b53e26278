"""`python -m worker.probe cuda:0`: whether torch can use the device that this process sees, as JSON. A worker's parent starts it once, as
a short child, since torch must not be in the parent."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

PROBE_SECONDS = 180.0  # torch is read from a cold disk, and CUDA begins


@dataclass(frozen=True)
class Found:
    """Why the device cannot be used, if it cannot, and its memory in bytes, if torch knows it."""

    problem: str | None = None
    total: int | None = None


def probe(device: str) -> Found:
    """Look from a short child process. A device of another kind than CUDA needs no look, but torch has to be there."""
    if find_spec("torch") is None:
        return Found("torch is not installed; install safelight with its extra, as 'safelight[worker]'")
    if not device.startswith("cuda"):
        return Found()
    command = [sys.executable, "-m", "worker.probe", device]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
        return Found(**json.loads(ran.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return Found(f"torch got no answer from it within {PROBE_SECONDS:g} s")
    except (IndexError, ValueError, TypeError):
        said = ran.stderr.strip().splitlines()
        return Found(f"the process that tried it ended with code {ran.returncode}" + (f": {said[-1]}" if said else ""))


def look(torch: Any, device: str) -> Found:
    """What torch makes of the device; `torch` is the module."""
    if torch.version.cuda is None and torch.version.hip is None:
        return Found(
            f"torch {torch.__version__} here is a build without CUDA; install one with it (see https://pytorch.org/get-started/locally)"
        )
    try:
        torch.cuda.init()  # unlike is_available it says why not
        facts = torch.cuda.get_device_properties(device)
        if why := unsupported((facts.major, facts.minor), torch.cuda.get_arch_list(), facts.name):
            return Found(f"{why} (torch {torch.__version__})")
        (torch.ones(1, device=device) + 1).item()
    except Exception as error:
        lines = str(error).strip().splitlines()
        return Found(lines[0] if lines else type(error).__name__)
    return Found(total=facts.total_memory)


def unsupported(capability: tuple[int, int], built_for: Sequence[str], name: str) -> str | None:
    """Why no kernel of a build for `built_for` (sm_80, compute_90, ...) runs on a card of this capability. Machine code runs on its own
    generation, from its own number on; what is compiled when it is loaded (compute_*) on every later card. A build that does not say
    (ROCm's gfx names) is not judged."""
    numbers = [
        (kind, divmod(int(number.rstrip("af")), 10)) for kind, _, number in (each.partition("_") for each in built_for) if number
    ]
    numbers = [(kind, number) for kind, number in numbers if kind in ("sm", "compute")]
    fits = [number <= capability and (kind == "compute" or number[0] == capability[0]) for kind, number in numbers]
    if not numbers or any(fits):
        return None
    known = ", ".join(dict.fromkeys(f"{major}.{minor}" for _, (major, minor) in numbers))
    return f"{name} has compute capability {capability[0]}.{capability[1]}, and torch is built for {known}"


def main(device: str) -> int:
    import torch

    sys.stdout.write("\n" + json.dumps(asdict(look(torch, device))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
