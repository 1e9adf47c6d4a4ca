"""What happens to a federation in a year, each as the operator's commands deal with it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hospitals import Federation

from free_ports import free_port

PLAN = "--max-dropouts 1 --buffer-size 3"


class Year:
    """One federation and what happens to it, in the order of the calendar."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.traveller = federation.traveller
        self.operator = federation.operator
        self.second_port = free_port()
        self.epoch = 0

    def train(self) -> None:
        """Two versions more."""
        self.federation.reach(max(self.federation.figures.version, 0) + 2)

    def begin(self, count: int) -> None:
        """Found it; everybody joins; the first epoch."""
        self.federation.found()
        names = [f"hospital-{index}" for index in range(1, count + 1)]
        self.federation.invite(*names)
        for name in names:
            self.federation.join(name)
        self.federation.wait_until_enrolled(*names)
        self.epoch_of(self.federation.start(count, PLAN))
        self.train()

    def epoch_of(self, said: str) -> None:
        """Note which epoch a command began: each has a higher number than all before."""
        (number,) = re.findall(r"epoch (\d+) from version", said)
        assert int(number) > self.epoch
        self.epoch = int(number)

    def rotate(self, options: str = PLAN) -> None:
        self.epoch_of(self.operator(f"rotate {options}"))
        self.train()

    def welcome(self, name: str) -> None:
        """A late member contributes at once."""
        self.federation.invite(name)
        self.federation.join(name)
        self.federation.wait_until_enrolled(name)
        assert f"admitted {name}" in self.operator("enrol")
        self.traveller.wait_until(
            lambda: self.traveller.has_logged(name, "update"), f"{name} contributes"
        )

    def dismiss(self, name: str) -> None:
        """Somebody must go: its agent ends, and says why by its status."""
        self.operator(f"revoke {name}")
        assert self.traveller.see_it_end(name) == 4
        assert re.search(rf"{name} +both, revoked", self.operator("status"))

    def replace(self, name: str) -> None:
        """A disk is lost; the hospital joins anew, in an empty folder."""
        self.traveller.kill(name)
        self.traveller.forget(name)
        self.traveller.type(f"rm -r {name} {name}.invitation")
        self.operator(f"replace {name}")
        enrolments = self.enrolments(name)
        self.federation.join(name)
        self.traveller.wait_until(
            lambda: self.enrolments(name) > enrolments, f"{name} enrols again"
        )
        assert f"admitted {name}" in self.operator("enrol")

    def enrolments(self, name: str) -> int:
        return [entry.get("event") for entry in self.traveller.events(name)].count("enrolled")

    def restore_the_operator(self, people: int) -> None:
        """An older copy of the operator's folder comes back, and does not know of the last epoch."""
        self.traveller.type("cp -r operator copy")
        self.rotate()
        self.traveller.type("rm -r operator && mv copy operator")
        assert "older copy" in self.operator("invite somebody", status=1)
        self.operator(f"recover --above {self.epoch}", answers="y\n" * people)
        self.rotate()

    def lose_the_server(self, hospitals: Sequence[str]) -> None:
        """A second one stands by, and goes on where the first was killed."""
        both = f"--url {self.federation.url} --url https://127.0.0.1:{self.second_port}"
        self.operator(f"address {both}")
        for name in hospitals:
            assert self.traveller.stop(name) == 0
            self.federation.join(name, f"--longest-wait 2 {both}")
        self.train()
        self.traveller.type("mkdir server-b && cp server/server.json server/tls.* server-b/")
        if (
            not self.federation.database
        ):  # a file, and one for both: a copy would be an older server
            file = self.traveller.work / "server" / "server.db"
            self.federation.database = f"--database sqlite:///{file}"
        self.federation.launch("standby", "server-b", self.second_port, "--standby --anchors b")
        said = self.traveller.said
        self.traveller.wait_until(lambda: "standing by" in said("standby"), "a standby")
        self.traveller.kill("server")
        self.traveller.forget("server")
        self.federation.port = self.second_port
        self.federation.wait_until_serving()
        self.train()

    def renew_the_servers_key(self) -> None:
        """It is printed, the server starts again, and the next epoch names it."""
        said = self.traveller.type("basecagg serve --state server-b --new-key --anchors b")
        (key,) = re.findall(r"^[0-9a-f]{64}$", said, re.MULTILINE)
        assert self.traveller.stop("standby") == 0
        self.federation.launch("standby", "server-b", self.second_port, "--standby --anchors b")
        self.federation.wait_until_serving()
        self.rotate(f"--server-key {key} {PLAN}")

    def read_the_logs(self) -> str:
        """The last head, which a second person writes down."""
        return re.findall(r"\b[0-9a-f]{64}\b", self.operator("log"))[-1]
