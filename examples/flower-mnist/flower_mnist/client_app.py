"""What a node does: train on its own examples, test on its own examples.

Torch is imported where it is used: when deployed, every message starts a process, and most do not train.
"""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from basecagg.flower import basecagg_mod

app = ClientApp(mods=[basecagg_mod])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the global model on this node's part."""
    from flower_mnist import task

    run = context.run_config
    net, examples = (
        task.load_net(run, msg.content["arrays"]),
        task.load_part(run, context.node_config),
    )
    loss = task.train(net, examples, run["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(examples.dataset)})
    arrays = ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the global model on this node's part."""
    from flower_mnist import task

    run = context.run_config
    net, examples = (
        task.load_net(run, msg.content["arrays"]),
        task.load_part(run, context.node_config),
    )
    loss, accuracy = task.test(net, examples)
    scores = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(examples.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(scores)}), reply_to=msg)
