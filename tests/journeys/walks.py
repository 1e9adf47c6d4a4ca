"""How a page is walked: every command on it is a step, run as printed but for small substitutions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from documented import commands, text_of
from hospitals import Federation
from traveller import Traveller

Substitutions = Sequence[tuple[str, str]]
"""What is printed → what is typed instead; `{url}` and its like stand for the story's values."""


@dataclass
class Story:
    """Where a walk has come to."""

    page: str
    traveller: Traveller
    database: str = ""
    values: dict[str, str] = field(default_factory=dict)
    said: str = ""
    """What the last command printed."""
    _federation: Federation | None = None

    @property
    def federation(self) -> Federation:
        """The one of this page, founded when it is first asked for."""
        if self._federation is None:
            self._federation = Federation(self.traveller, size=1000, database=self.database)
            self.values |= {"url": self._federation.url, "port": str(self._federation.port)}
        return self._federation


Action = Callable[[Story], None]


@dataclass(frozen=True)
class Step:
    """A command on a page, known by how it begins."""

    begins: str
    substitutions: Substitutions = ()
    first: Action | None = None
    """What a reader has done before, and the page does not print."""
    then: Action | None = None
    status: int = 0
    answers: str = ""
    runs_as: str | None = None
    """The name under which it goes on in the background."""
    elsewhere: str | None = None
    """The journey that runs it: file::function."""
    reason: str | None = None
    """Why it is not run at all."""

    def take(self, command: str, story: Story, usual: Substitutions) -> None:
        """Type the command as the story wants it."""
        if self.elsewhere or self.reason:
            return
        if self.first:
            self.first(story)
        line = substituted(command, [*self.substitutions, *usual], story.values)
        if self.runs_as:
            story.traveller.leave_running(self.runs_as, line)
        else:
            story.said = story.traveller.type(line, status=self.status, answers=self.answers)
        if self.then:
            self.then(story)


def substituted(command: str, substitutions: Substitutions, values: dict[str, str]) -> str:
    """The command with every substitution that is meant for it."""
    for printed, typed in substitutions:
        for name, value in values.items():
            typed = typed.replace(f"{{{name}}}", value)  # noqa: PLW2901
        command = re.sub(printed, lambda _, typed=typed: typed, command)
    return command


@dataclass(frozen=True)
class Walk:
    """All steps of a page, in its order."""

    steps: Sequence[Step]
    substitutions: Substitutions = ()
    first: Action | None = None

    def make(self, page: str, traveller: Traveller, database: str) -> None:
        """Walk through the page."""
        story = Story(page, traveller, database)
        story.values |= {"wheel": str(traveller.installation.wheel)}
        if self.first:
            self.first(story)
        for step, command in zip(self.steps, commands(text_of(page)), strict=True):
            step.take(command, story, [*self.substitutions, *USUAL])


USUAL: Substitutions = (
    (r"'(basecagg|\.|\.\./\.\.)(?=\[)", "'{wheel}"),
    (r"(?<=^pip install )\.(?= |$)", "'{wheel}'"),
    (r"https://fl\.example\.org:8443", "{url}"),
    (r"postgresql\+psycopg://basecagg@db\.example\.org/basecagg", "{database}"),
)
"""The wheel instead of a published package; our server instead of theirs."""


def typed(begins: str, *substitutions: tuple[str, str], **more: object) -> Step:
    return Step(begins, substitutions, **more)  # type: ignore[arg-type]


def elsewhere(begins: str, journey: str) -> Step:
    return Step(begins, elsewhere=journey)


def not_run(begins: str, reason: str) -> Step:
    return Step(begins, reason=reason)


def unmatched(steps: Sequence[Step], text: str) -> list[str]:
    """The commands of a page that no step is for, and the steps that have no command."""
    typed = commands(text)
    pairs = zip(typed, steps, strict=False)
    wrong = [command for command, step in pairs if not command.startswith(step.begins)]
    return wrong + typed[len(steps) :] + [step.begins for step in steps[len(typed) :]]
