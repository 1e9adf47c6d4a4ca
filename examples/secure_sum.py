"""BASecAgg end to end, in memory: seven users, a buffer of three, and a server that learns only their sum."""

import numpy as np

from basecagg import ProtocolParameters
from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SealingKeys
from basecagg.maths.staleness import polynomial
from basecagg.parties.epoch_server import EpochServer
from basecagg.parties.member import Member, Pins
from basecagg.protocol.epoch import Seat, accept, draft_epoch, first_link
from basecagg.simulation.loopback import Loopback
from basecagg.storage.in_memory import MemoryStore

parameters = ProtocolParameters(
    num_holders=7, max_colluders=1, max_dropouts=2, recovery_threshold=4,
    buffer_size=3, model_size=1000, staleness=polynomial(1.0),
)  # fmt: skip
users, model = [f"user-{i}" for i in range(7)], np.zeros(1000, np.float32)
signing = {name: Identity.create() for name in (*users, "operator", "enrolment", "server")}
network, verifier = Loopback(), Ed25519Verifier()

# Every user believes the operator alone, and tells it a sealing key.
for user in users:
    mine, operators = signing[user].public_key, signing["operator"].public_key
    pins = Pins(federation="example", name=user, signing_key=mine, operator_key=operators)
    member = Member(pins, signing[user], SealingKeys("x25519"), verifier, MemoryStore())
    member.start(now=0)
    network.members[user] = member
keys = {user: network.members[user].announce().sealing_key for user in users}

# The operator signs an epoch and the model that it begins with; everyone checks it against the operator's key.
epoch = draft_epoch(
    federation="example", parameters=parameters, operator=signing["operator"],
    holders=[Seat(user, signing[user].public_key, keys[user]) for user in users],
    server_key=signing["server"].public_key, enrolment_key=signing["enrolment"].public_key,
    first=first_link(model),
)  # fmt: skip
agreement = accept(epoch, signing["operator"].public_key, verifier)
store = MemoryStore()
server = EpochServer.of(agreement, signing["server"], store, model, post=network.post_all)
server.start()
network.server = server
for user in users:
    credential = enrol(signing["enrolment"], agreement.id, user, signing[user].public_key)
    network.members[user].offer([epoch, credential])

# 1. Deal: a mask is encoded, sealed, confirmed.  2. Quantise an update (before − after), mask it, upload.
updates = np.random.default_rng(1).normal(scale=0.1, size=(3, 1000))
for user, update in zip(users[:3], updates, strict=True):
    member = network.members[user]
    network.send(user, member.deal())
    network.run()
    network.send(user, member.submit(update, 0, member.head_of(0, model)))

# 3. Two holders vanish; the others certify and answer the recovery; the server opens the sum.
network.away = {"user-5", "user-6"}
network.run()
error = np.abs(-server.machine.model - updates.mean(axis=0)).max()
print(f"version {server.machine.version}: the mean of 3 masked updates, off by {error:.1e} at most")
