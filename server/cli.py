"""The `safelight` command: start the parts, and a client for the REST API. Imports no torch."""

import json
import os
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from models import catalog
from models.errors import UserError
from server import client, jobfile
from server.store.settings import settings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
out, err = Console(), Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print the API's answer as JSON.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, for instance train.steps=50.")
]


@app.command("up")
def start_all() -> None:
    """The API, the web page, the broker and one worker per device, in this terminal. Ctrl-C stops all; jobs go on next time."""
    from server import up  # the server's side is heavy and the client's commands are not

    raise typer.Exit(up.run())


@app.command()
def serve() -> None:
    """The API and the web page only."""
    from server import up

    up.serve()


@app.command()
def worker(
    device: Annotated[str | None, typer.Option(help="cpu, cuda:N, or a card's UUID; default: the first there is.")] = None,
) -> None:
    """One worker process for one device."""
    become("worker.app", *(["--device", device] if device else []))


@app.command()
def demo(
    exit_when_done: Annotated[bool, typer.Option("--exit", help="Stop everything when the demo job has ended.")] = False,
) -> None:
    """`up`, then the bundled demo job, followed here."""
    from server import up

    raise typer.Exit(up.run(demo=True, exit_when_done=exit_when_done))


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="A job as JSON or YAML.")],
    follow: Annotated[bool, typer.Option("--follow", help="Follow it to its end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")] = False,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Post a job file to the running server."""
    spec = client.patched(jobfile.read(file), client.read_changes(changes or []))
    if dry_run:
        plan = client.call("POST", "/v1/jobs/validate", spec)
        _warn(plan)
        out.print_json(json.dumps(plan))
        raise typer.Exit(0 if plan["ok"] else 1)
    job = client.call("POST", "/v1/jobs", spec, {"Idempotency-Key": str(uuid.uuid4())})
    _warn(job)
    _show(job, as_json)
    if follow:
        raise typer.Exit(client.follow(job["id"], out))


@app.command()
def jobs(as_json: AsJson = False, limit: int = 20) -> None:
    """The newest jobs."""
    answer = client.call("GET", f"/v1/jobs?limit={limit}")
    if as_json:
        out.print_json(json.dumps(answer))
        return
    table = Table(Column("id", no_wrap=True), "name", "status", "step", "loss", "created", box=None)
    for job in answer["jobs"]:
        loss = "" if job["loss"] is None else f"{job['loss']:.4f}"
        table.add_row(
            job["id"], escape(job["name"]), job["status"], f"{job['step']}/{job['total_steps']}", loss, job["created_at"]
        )
    out.print(table)


@app.command()
def show(job_id: str, as_json: AsJson = False) -> None:
    """One job."""
    _show(client.call("GET", f"/v1/jobs/{job_id}"), as_json)


@app.command()
def follow(job_id: str, as_json: AsJson = False) -> None:
    """Follow a job to its end: progress, loss, newest preview. With --json, one event per line."""
    raise typer.Exit(client.follow(job_id, out, as_json))


@app.command()
def cancel(job_id: str, as_json: AsJson = False) -> None:
    """Stop a job; its work is saved."""
    _show(client.call("POST", f"/v1/jobs/{job_id}/cancel"), as_json)


@app.command()
def pause(job_id: str, as_json: AsJson = False) -> None:
    """Save a job and give its memory back until it is resumed."""
    _show(client.call("POST", f"/v1/jobs/{job_id}/pause"), as_json)


@app.command()
def sample(job_id: str, as_json: AsJson = False) -> None:
    """Ask a running job for previews now."""
    _show(client.call("POST", f"/v1/jobs/{job_id}/sample"), as_json)


@app.command()
def checkpoint(job_id: str, as_json: AsJson = False) -> None:
    """Ask a running job for a checkpoint now."""
    _show(client.call("POST", f"/v1/jobs/{job_id}/checkpoint"), as_json)


@app.command()
def resume(
    job_id: str,
    changes: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a paused or ended job, for instance with more steps."""
    patch = client.read_changes(changes or []) or None
    if dry_run:
        plan = client.call("POST", f"/v1/jobs/{job_id}/resume?dry_run=true", patch)
        _warn(plan)
        out.print_json(json.dumps(plan))
        raise typer.Exit(0 if plan["ok"] else 1)
    job = client.call("POST", f"/v1/jobs/{job_id}/resume", patch)
    _warn(job)
    _show(job, as_json)


@app.command()
def archs(as_json: AsJson = False) -> None:
    """The catalogue of architectures. Needs no server."""
    cards = list(catalog.archs().values())
    if as_json:
        shown = [
            {"arch": c.name, "label": c.label, "kind": c.kind, "modality": c.modality, "description": c.description}
            for c in cards
        ]
        out.print_json(json.dumps(shown))
        return
    table = Table("arch", "label", "kind", "description", box=None)
    for card in cards:
        table.add_row(card.name, card.label, card.kind, card.description)
    out.print(table)


@app.command()
def tiny(arch: str, folder: Path) -> None:
    """Write a tiny random-weight checkpoint of ARCH into FOLDER, in its real layout."""
    _check_bundled(arch)
    become("worker.tiny", arch, str(folder))


@app.command()
def conform(arch: str) -> None:
    """Run the contract's rules on ARCH's tiny checkpoint and print what holds and what does not."""
    _check_bundled(arch)
    become("worker.conform", arch)


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m module`, which needs torch. So every signal reaches the part itself, also where
    `safelight worker` is a container's first process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def check_packages() -> None:
    """The names server, worker and models are everyone's; say so in one line when Python finds other ones first."""
    here = Path(__file__).parent.parent
    for name in ("models", "worker"):
        found = find_spec(name)
        if found is None or found.origin is None or Path(found.origin).parent.parent != here:
            where = found.origin if found else "none"
            raise RuntimeError(
                f"Python finds another package called '{name}' ({where}); run safelight in an environment of its own"
            )
    if sys.platform == "win32":
        raise RuntimeError("native Windows does not work, since Celery does not support it; use WSL2")


def _check_bundled(arch: str) -> None:
    """Refuse an unknown name at once; with SAFELIGHT_EXTENSIONS only the worker's side, which may import them, can tell."""
    if not settings().extensions:
        catalog.arch(arch)


def _warn(answer: dict[str, Any]) -> None:
    """Print what a plan warns of, on standard error, so that an answer as JSON stays whole."""
    for each in answer["warnings"]:
        at = f"{each['pointer']}: " if each["pointer"] else ""
        err.print(f"warning: {at}{each['message']}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _show(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        out.print_json(json.dumps(job))
        return
    out.print(
        f"[bold]{job['id']}[/]  {escape(job['name'])}  {job['status']}  step {job['step']}/{job['total_steps']}", highlight=False
    )
    if job["error"]:
        err.print(f"{job['error']['message']}. {job['error']['hint'] or ''}", style="red", highlight=False, markup=False)
    out.print(f"{settings().url}/jobs/{job['id']}", highlight=False)


def main() -> None:
    """Every error is one readable line; a traceback is for --debug."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    try:
        check_packages()
        app()
    except (UserError, client.ApiError, OSError, RuntimeError, ValueError) as error:
        if debug:
            raise
        err.print(f"safelight: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
