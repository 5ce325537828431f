"""The Triton kernels on a machine without a GPU: interpreted for answers, compiled for the code.

Triton decides when it is imported whether it interprets: hence processes of their own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the wheel of torch for CPUs does not bring triton")

ROOT = Path(__file__).resolve().parents[2]
FILES = ("tests/search/test_gpu_scan.py", "tests/search/test_gpu_kernels.py")

#: Of the check for hardware, those that an interpreter can do.
STEPS = "--steps=kernels,answers,following,speed"
#: What decides whether an answer can be trusted: the formula, masks, broken cases, the last row.
WEIGHTIEST = (
    "kernels_are or every_logit or (broken_case and bias) or dead_row or past_the_end "
    "or (passes_no_loop and 13 and nan)"
)


def interpreted(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-qp", "no:cacheprovider", *FILES, *arguments],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def passed(done):
    assert done.returncode == 0, done.stdout[-4000:]
    return int(done.stdout.splitlines()[-1].split()[0])


def test_interpreted_kernels_find_what_the_formula_finds():
    assert passed(interpreted("-k", WEIGHTIEST)) >= 19


@pytest.mark.slow
def test_interpreted_kernels_pass_every_test_of_the_scan():
    assert passed(interpreted("-k", "not float16-129")) >= 100


#: Kernels as (type of the vectors, queries, rows of a group, rank, D).
BUILDS = {
    "one query": ("fp32", 1, 32, 0, 512),
    "many queries": ("fp16", 16, 32, 64, 512),
    "every score": ("bf16", 16, 1, 0, 512),
    "plain logits": ("fp32", 16, 0, 0, 512),
    "picked groups": ("fp32", 1, -32, 8, 512),
    "both loops": ("fp32", 1, 0, 0, 13),
}
#: Compiles them as for an H200 and prints what matters of the code.
COMPILE = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from retriever.kernels import triton_scan

def built(dtype, queries, group, rank, hidden):
    kernel = triton_scan._picked if group < 0 else triton_scan._scores
    constants = dict(T=256, GROUP=abs(group), D=hidden, BIAS=True, RANK=rank)
    constants |= dict(W=hidden + 1 + rank, UNROLL=triton_scan.UNROLL)
    constants |= (dict(L=64) if group < 0 else dict(Q=queries))
    pointers = dict.fromkeys(["weight", "shift", "factor", "constant", "out"], "*fp32")
    pointers |= {"tiles": "*" + dtype, "live": "*u8", "groups": "*i64"}
    names = kernel.arg_names
    types = {n: pointers.get(n, "constexpr" if n in constants else "i32") for n in names}
    types["sign"] = "fp32"
    aligned = [n for n in names if n in pointers or n == "stride"]
    source = ASTSource(
        kernel,
        types,
        {(names.index(n),): value for n, value in constants.items()},
        {(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})

found = {}
for name, given in json.loads(sys.argv[1]).items():
    made = built(*given)
    patterns = ("max[.]NaN[.]f32", "fma[.]rn[.]f32", "ld[.]global[.]v[24]", "max[.]f32")
    found[name] = [len(re.findall(pattern, made.asm["ptx"])) for pattern in patterns]
    assert made.asm["cubin"]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_kernels_compile_for_an_h200_and_let_no_nan_pass(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(BUILDS)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == BUILDS.keys()
    for name, (maxima, added, wide, numbers) in found.items():
        lanes = 2 if name == "picked groups" else 8 * BUILDS[name][1]  # sums that each lane keeps
        assert maxima >= 8 * lanes, f"{name}: a plain maximum takes the number beside a NaN"
        # Where no best of a group is taken, no maximum is left that may be one of numbers.
        assert numbers == 0 or BUILDS[name][2] not in (0, 1), f"{name}: a loop lets NaN pass"
        assert added >= 8 * lanes, f"{name}: one multiply-add a value"
        least = 0 if name in ("picked groups", "both loops") else 8
        assert wide >= least, f"{name}: neighbours in one load"


@pytest.mark.slow
def test_the_check_for_hardware_runs_interpreted():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_engine", "--device=cpu", "--quick", STEPS],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("scanner  triton")
    assert "speed: skipped: an interpreter has no speed" in done.stdout
