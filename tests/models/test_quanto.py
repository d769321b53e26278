"""quanto as on a machine with an NVIDIA card, as far as a CPU can show it: no kernel of its own is compiled or chosen."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# CUDA is said to be there before quanto is imported, as it is on such a machine. Of a weight's parts only device and dtype decide.
WITH_A_CARD = """
import json, sys, types
import torch
torch.version.cuda = "12.8"
torch.cuda.is_available, torch.cuda.device_count, torch.cuda.get_arch_list = lambda: True, lambda: 1, lambda: ["sm_90"]
torch.cuda.get_device_capability = lambda *_: (9, 0)
import torch.utils.cpp_extension
compiled = []
torch.utils.cpp_extension.load = lambda name, **_: compiled.append(name)
sys.modules["optimum.quanto.models"] = types.ModuleType("models")  # whole pipelines, which take seconds to import
from models.quanto import WeightQBitsTensor, WeightQBytesTensor, extension, quanto

SHAPE = 0, (128, 128), (128, 1)  # axis, size, stride
classes = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for device in ("cpu", "cuda"):
        on = types.SimpleNamespace(device=torch.device(device), dtype=dtype)
        fp8 = WeightQBytesTensor.create(quanto.qfloat8_e4m3fn, *SHAPE, on, on, activation_qtype=None)
        int4 = WeightQBitsTensor.create(quanto.qint4, 0, 128, *SHAPE[1:], on, on, on)
        classes |= {f"{device} {dtype} fp8": type(fp8).__name__, f"{device} {dtype} int4": type(int4).__name__}
table = torch._C._dispatch_dump("quanto::unpack").splitlines()
print(json.dumps({"classes": classes, "compiled": compiled, "extensions": list(extension._extensions), "table": table}))
"""


def test_where_cuda_is_available_no_kernel_of_quantos_own_is_compiled_or_chosen() -> None:
    ran = subprocess.run([sys.executable, "-c", WITH_A_CARD], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    kinds = {"fp8": "WeightQBytesTensor", "int4": "WeightQBitsTensor"}
    assert len(found["classes"]) == 12
    assert found["classes"] == {case: kinds[case.split()[-1]] for case in found["classes"]}
    assert found["compiled"] == [] and "quanto_cuda" not in found["extensions"]
    active = {line.partition(":")[0]: line for line in found["table"] if "registered at" in line and "inactive" not in line}
    assert all("models/quanto.py" in active[key] for key in ("CPU", "CUDA", "MPS"))
