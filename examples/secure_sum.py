"""BASecAgg end to end, in memory: seven users, a buffer of three, and a server that learns only their sum."""

import numpy as np

from basecagg import ProtocolParameters
from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SealingSecret, make_sealer
from basecagg.maths.staleness import polynomial
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.epoch import Seat, accept, draft_epoch, first_link
from basecagg.protocol.holder import Holder
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.server import Server, ServerSettings
from basecagg.simulation.loopback import AT_SERVER, Address, Loopback
from basecagg.storage.in_memory import MemoryStore

parameters = ProtocolParameters(
    num_holders=7, max_colluders=1, max_dropouts=2, recovery_threshold=4,
    buffer_size=3, model_size=1000, staleness=polynomial(1.0),
)  # fmt: skip
users, model = [f"user-{i}" for i in range(7)], np.zeros(1000, np.float32)
signing = {name: Identity.create() for name in (*users, "operator", "enrolment", "server")}
sealing = {name: SealingSecret.create() for name in users}

# The operator signs an epoch and the model that it begins with; everyone checks it against the operator's key.
epoch = draft_epoch(
    federation="example", parameters=parameters, operator=signing["operator"],
    holders=[Seat(u, signing[u].public_key, sealing[u].public_key) for u in users],
    server_key=signing["server"].public_key, enrolment_key=signing["enrolment"].public_key,
    first=first_link(model),
)  # fmt: skip
agreement = accept(epoch, signing["operator"].public_key, Ed25519Verifier())

# Every user is a holder and a contributor, each machine with its own store, on a network in memory.
network, store = Loopback(), MemoryStore()
recovery = Recovery(agreement, signing["server"], store)
server = Server(ServerSettings.of(agreement), recovery, store, model)
network.add(AT_SERVER, server, store)
for index, user in enumerate(users):
    holder = Holder(agreement, index, signing[user], sealing[user], store := MemoryStore())
    network.add(Address("holder", user), holder, store)
    credential = enrol(signing["enrolment"], agreement.id, user, signing[user].public_key)
    sealer, store = make_sealer("x25519"), MemoryStore()
    contributor = Contributor(agreement, credential, signing[user], sealer, store)
    network.add(Address("contributor", user), contributor, store)

# 1. Deal: a mask is encoded, sealed, confirmed.  2. Quantise an update (before − after), mask it, upload.
updates = np.random.default_rng(1).normal(scale=0.1, size=(3, 1000))
for user, update in zip(users[:3], updates, strict=True):
    address = Address("contributor", user)
    contributor = network.nodes[address].machine
    network.perform(address, contributor.deal(server.version))
    network.run()
    network.perform(address, contributor.submit(update, server.version, server.head))

# 3. Two holders vanish; the others certify and answer the recovery; the server opens the sum.
del network.nodes[Address("holder", "user-5")], network.nodes[Address("holder", "user-6")]
network.run()
error = np.abs(-server.model - updates.mean(axis=0)).max()
print(f"version {server.version}: the mean of 3 masked updates, off by {error:.1e} at most")
