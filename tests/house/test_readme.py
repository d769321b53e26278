"""The README's shell lines, run as they stand."""

import re
import subprocess
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
PORT = "8765"


def test_shell_lines_work_verbatim(stack, tmp_path: Path) -> None:
    section = README.read_text().split("## Use it from a shell")[1].split("\n## ")[0]
    script = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    up = stack()
    ran = subprocess.run(
        ["sh", "-eu"],
        input=script.replace(PORT, str(up.port)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    previews = sorted(int(path.stem.split("-")[1]) for path in tmp_path.glob("preview-*.png"))
    assert previews == list(range(1, 9))  # steps 0, 20, 40, 60 of two prompts
    assert all((tmp_path / f"preview-{n}.png").read_bytes().startswith(b"\x89PNG") for n in previews)
    assert (tmp_path / "my-first-job_000000060.safetensors").stat().st_size > 1_000_000
    assert '"status":"succeeded"' in ran.stdout.replace(" ", "")
    assert "event: end" in ran.stdout
