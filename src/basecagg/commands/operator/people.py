"""`basecagg operator invite`, `replace`, `enrol`, `revoke` and `status`: who belongs to the federation."""

import time
from pathlib import Path

import click

from basecagg.commands._options import Folder, options
from basecagg.commands.operator.place import Place, at_work, connected
from basecagg.errors import quoted
from basecagg.options import InvitationOptions
from basecagg.protocol.operator import require_free
from basecagg.protocol.stored import Person, Role
from basecagg.service.documents import ONLINE_SECONDS, Invitation, Overview, moment
from basecagg.service.handed_over import write_invitation
from basecagg.service.operator.office import Office


class _ReplaceOptions(InvitationOptions):
    out: Folder = "."
    """Where NAME.invitation is written."""


class _InviteOptions(_ReplaceOptions):
    role: Role = "both"
    """What they do: train, keep shares, or both as in the paper."""


@click.command("invite")
@click.argument("names", nargs=-1, required=True)
@options(_InviteOptions)
@connected
async def invite(
    office: Office, *, names: tuple[str, ...], role: Role, invitation_days: float, out: Path
) -> None:
    """Write an invitation for each of NAMES. Send it by a way that others cannot read."""
    for name in names:  # all of them before anybody is invited
        require_free(name)
    for name in names:
        _write_invitation(out, await office.invite(name, role, invitation_days))


@click.command("replace")
@click.argument("name")
@options(_ReplaceOptions)
@connected
async def replace(office: Office, *, name: str, invitation_days: float, out: Path) -> None:
    """Write another invitation for NAME, whose disk or invitation was lost.

    NAME joins with it as if new, in an empty folder, and is a holder again from the next epoch on; the old key
    never comes back.
    """
    _write_invitation(out, await office.replace(name, invitation_days))


def _write_invitation(out: Path, invitation: Invitation) -> None:
    """Under the invitation's own name, which was checked: it cannot lead out of the folder."""
    path = out / f"{invitation.name}.invitation"
    write_invitation(path, invitation)
    click.echo(f"{path}")
    if invitation.expires:
        click.echo(f"{invitation.name} is expected until {moment(invitation.expires)}", err=True)


class _Enrol:
    watch: bool = False
    """Go on, admitting whoever comes with an invitation."""


@click.command("enrol")
@options(_Enrol)
@click.pass_obj
def enrol(place: Place, *, watch: bool) -> None:
    """Admit those who have enrolled with an invitation."""
    at_work(place, admit)
    while watch:  # the folder is free for other commands in between
        time.sleep(1.0)
        at_work(place, admit)


async def admit(office: Office) -> None:
    """Admit whoever waits, and say whom."""
    for name in await office.admit_all():
        click.echo(f"admitted {name}")


@click.command("revoke")
@click.argument("name")
@connected
async def revoke(office: Office, *, name: str) -> None:
    """Take nothing more from the user NAME. Holders forget it with the next epoch: rotate."""
    await office.revoke(name)
    click.echo(f"revoked {name}")


@click.command("status")
@connected
async def status(office: Office) -> None:
    """Say where the federation stands, or what keeps its server from going on."""
    overview = await office.look(patient=False)
    said = f"epoch {overview.epoch_number} is {overview.phase}, version {overview.version}"
    if overview.phase == "open" and (when := closing_words(overview.last_version, overview.closes)):
        said += f"; it {when}"
    if overview.phase in ("open", "closing") and overview.protection == "none":
        said += "; protection none: the server sees every update"
    if overview.phase == "closed" and not office.machine.has_ended:
        said += "; `operator close` signs its end"
    click.echo(said)
    if office.machine.suspended:
        click.echo("an older copy of the operator, which signs nothing: `operator recover` it")
    missing = office.machine.missing()
    for name, person in sorted(office.machine.people.items()):
        there = _presence(name, person, overview)
        wanting = f"; next epoch: {missing[name]}" if name in missing else ""
        wrong = overview.inconsistent.get(name)
        lied = f"; {wrong} wrong answers corrected (a bad dealing looks the same)" if wrong else ""
        in_lies = overview.unapplied.get(name)
        long = f"; in {in_lies} sums too long to be honest, not applied" if in_lies else ""
        click.echo(f"  {name:30} {person.role}, {person.state}{there}{wanting}{lied}{long}")
    for enrolment in overview.enrolments:
        click.echo(f"  {enrolment.name:30} waits for `enrol`")
    if overview.trouble:
        click.echo(f"no sum is opened: {quoted(overview.trouble)}")


def closing_words(last_version: int | None, closes: int) -> str:
    """When an epoch closes by itself, if it does."""
    when = [f"at version {last_version}"] if last_version is not None else []
    when += [f"on {moment(closes)}"] if closes else []
    return f"closes {' or '.join(when)}" if when else ""


def _presence(name: str, person: Person, overview: Overview) -> str:
    """Whether an admitted person is there, as far as the server has heard since it started."""
    if person.state == "invited":
        return "; expired: invite again" if 0 < person.expires <= time.time() else ""
    if person.state != "admitted":
        return ""
    age = overview.seen.get(name)
    if age is None:
        there = f"; not seen since the server started {_ago(overview.uptime)}"
    elif age < ONLINE_SECONDS:
        there = "; online"
    else:
        there = f"; last seen {_ago(age)}"
    return f"{there}; retired until the next epoch" if name in overview.retired else there


def _ago(seconds: int) -> str:
    units = ((86_400, "days"), (3600, "hours"), (60, "minutes"))
    for size, unit in units:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} seconds ago"
