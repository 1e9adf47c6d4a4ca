"""The mod: what a node does with the strategy's messages, around the app's own training function."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable


def basecagg_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mask what the app trains, keep shares for others, and answer recoveries: ClientApp(mods=[basecagg_mod]).

    Messages of any other strategy pass unchanged. A node keeps its keys, masks and shares under the folder that
    its node config names: flower-supernode --node-config "state-dir='/var/lib/…'". On the simulation engine the
    run config's `basecagg-state-dir` is used if there is one, else a folder among the temporary files.
    """
    raise NotImplementedError
