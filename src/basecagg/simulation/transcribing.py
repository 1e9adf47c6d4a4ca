"""The transcripts of a run: what the server of each epoch saw, line by line, for the audit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import FileIO
from itertools import takewhile
from pathlib import Path

from basecagg.auditing.recorder import Recorder
from basecagg.auditing.transcript import AnyLine, EpochLine, Scribe, chain_of, read_transcript
from basecagg.errors import StorageError
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import Chain
from basecagg.protocol.ports import Signer
from basecagg.simulation.loopback import Loopback
from basecagg.simulation.run_folder import transcript_path, transcripts
from basecagg.simulation.sums import Watch
from basecagg.storage import disk


@contextmanager
def transcribed(folder: Path | None, *, resumed: bool) -> Iterator[Watch]:
    """What writes down, in the folder of a run, what its server sees. A resumed run adds to it.

    Each epoch has its own, locked while it grows, and closed when the epoch or the run comes to its end. A run
    that was resumed and has none gets none: what its server saw before would be missing.
    """
    if folder is None or (resumed and not transcripts(folder)):
        yield lambda agreement, network, signer: None
        return
    end: Callable[[], None] = lambda: None  # noqa: E731
    with ExitStack() as opened:

        def watch(agreement: Agreement, network: Loopback, signer: Signer) -> None:
            nonlocal end
            end()
            path, chain = _unfinished(folder)
            # Without a buffer, so that a checkpoint knows how much has been seen.
            file = opened.enter_context(path.open("ab", buffering=0))
            _lock(file)
            scribe = Scribe(lambda text: _write_all(file, text.encode()), chain)

            def note(line: AnyLine) -> None:
                if chain is None or not isinstance(line, EpochLine):  # it is there already
                    scribe.add(line)

            recorder = Recorder(agreement, note)
            network.observers.append(lambda letter: recorder.see(letter.sender, letter.message))
            end = partial(scribe.close, signer)

        yield watch
        end()


def _unfinished(folder: Path) -> tuple[Path, Chain | None]:
    """The first transcript that has no end, and how far it has come: those before are of earlier epochs."""
    ended = len(list(takewhile(_has_ended, transcripts(folder))))
    path = transcript_path(folder, ended + 1)
    return path, chain_of(path) if path.exists() and path.stat().st_size else None


def _has_ended(path: Path) -> bool:
    return path.stat().st_size > 0 and read_transcript(path).ending in ("signed", "closed")


def _lock(file: FileIO) -> None:
    try:
        disk.lock(file.fileno())
    except OSError:
        raise StorageError(f"{file.name} is being written by another run") from None


def _write_all(file: FileIO, content: bytes) -> None:
    try:
        while content:
            content = content[file.write(content) :]
    except OSError as error:
        raise StorageError(f"{file.name} cannot be written: {error.strerror}") from None
