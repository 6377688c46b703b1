"""`oncelery doctor`: what is wrong with a set-up, why, and the line that mends it."""

from __future__ import annotations

from dataclasses import asdict

import click

from oncelery.cli.output import coloured, console, json_option, print_json, printable
from oncelery.cli.target import Target, target_options
from oncelery.job import DEFAULT_NAMESPACE
from oncelery.operations.doctor import CHECKS, STORE_CHECKS, Finding, examine


@click.command()
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@click.option(
    "--ignore",
    type=click.Choice([check.name for check in CHECKS]),
    multiple=True,
    metavar="CHECK",
    help="Leave a check out; may be repeated.",
)
@json_option
@target_options
@click.pass_context
def doctor(ctx: click.Context, target: Target, *, strict: bool, ignore: tuple[str, ...], as_json: bool) -> None:
    """Look at app, broker, store and workers, or at a store alone. Exits with 1 if there is an error."""
    findings = _examine(target, ignore)
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    ctx.exit(bool(errors or (strict and findings)))


def _examine(target: Target, ignore: tuple[str, ...]) -> tuple[Finding, ...]:
    from oncelery.celery.facts import gather_store  # noqa: PLC0415 - Celery is not loaded for --help

    if target.store:
        facts = gather_store(target.store, target.namespace or DEFAULT_NAMESPACE)
        return examine(facts, ignore=ignore, checks=STORE_CHECKS)
    if not target.app:
        raise click.UsageError("examine what? Give your app (oncelery -A yourapp doctor), or --store URL")
    return target.once().doctor(ignore=ignore)


def _print(findings: tuple[Finding, ...]) -> None:
    terminal = console()
    for finding in findings:
        terminal.print(
            coloured(finding.severity.ljust(8), finding.severity), coloured(f"{finding.check}:", "check"), end=" "
        )
        terminal.print(printable(finding.what))
        terminal.print(printable(f"  why    {finding.why}\n  fix    {finding.fix}"))
    if not findings:
        terminal.print("nothing is wrong")
