"""`basecagg operator`: keys, invitations, members, epochs and the final model."""

from functools import cache, partial
from pathlib import Path

import click

from basecagg.commands._options import AnchorOptions, File, Folder, options
from basecagg.commands.operator import addresses, epochs, keys, log, people, study
from basecagg.commands.operator.place import Place
from basecagg.service.logs import log_plainly
from basecagg.service.operator.custody import read_passphrase

_COMMANDS = (
    *(keys.init, keys.key, addresses.address, addresses.certificate),
    *(people.invite, people.replace, people.enrol, people.revoke, people.status, log.log),
    *(epochs.start, epochs.rotate, epochs.close, study.study),
    *(keys.recover, keys.passphrase, epochs.export),
)


class _OperatorOptions(AnchorOptions):
    folder: Folder = "operator"
    """The operator's folder. It holds the federation's most precious keys."""
    passphrase_file: File | None = None
    """Its first line is the passphrase of the keys. You are asked for it otherwise, if they have one."""


@click.group("operator")
@options(_OperatorOptions)
@click.pass_context
def command(
    context: click.Context, *, folder: Path, anchors: Path | None, passphrase_file: Path | None
) -> None:
    """Run a federation as its operator: keys, invitations, epochs, the final model.

    The operator needs no machine that is always on: a command connects to the server, does its work and ends.
    """
    log_plainly()
    context.obj = Place(folder, anchors, cache(partial(_passphrase, passphrase_file)))


def _passphrase(path: Path | None, *, fresh: bool = False) -> str:
    if path is not None:
        return read_passphrase(path)
    what = "Passphrase of the operator's keys"
    asked: str = click.prompt(what, hide_input=True, confirmation_prompt=fresh, err=True)
    return asked


for _each in _COMMANDS:
    command.add_command(_each)
