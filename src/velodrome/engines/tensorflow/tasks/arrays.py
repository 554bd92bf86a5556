"""Tasks on examples by their indices under TensorFlow, images among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.engines.tensorflow.flat import FlatModel
from velodrome.engines.tensorflow.tasks.base import TensorFlowTask
from velodrome.models.equivalence import claims_equivalence, equivalence_warnings
from velodrome.tasks.examples import ExampleTask
from velodrome.worker.context import Context

if TYPE_CHECKING:
    from velodrome.engines.tensorflow.feeds import Feed
    from velodrome.engines.tensorflow.parameter_server import ParameterServer


class ArrayTask(TensorFlowTask):
    """Batches by index, which parameter-server workers look up in their own copy of the data."""

    def network(self, context: Context) -> FlatModel:
        from velodrome.engines.tensorflow.network import Network

        assert isinstance(context.task, ExampleTask), "another side of the task is for other data"
        network = Network(context.job, context.task, context.data, context.saved_model)
        if context.is_chief and context.saved_model is None:
            reasons = network.reasons_against_equivalence() if claims_equivalence(context.job) else ()
            for note in (*network.notes, *equivalence_warnings(context.job.model, reasons)):
                context.events.emit("warning", message=note)
        return network

    def feed(self, context: Context, ranks: range) -> Feed:
        from velodrome.engines.tensorflow.feeds import IndexFeed

        return IndexFeed(context, ranks)

    def dispatcher(self, context: Context, network: Any, strategy: Any, monitor: PeerMonitor) -> ParameterServer:
        from velodrome.engines.tensorflow.dispatchers import IndexDispatcher

        return IndexDispatcher(context, network, strategy, monitor)

    def prepare_server_worker(self, context: Context) -> None:
        from velodrome.engines.tensorflow import worker_data

        if worker_data.reads_itself(context):
            worker_data.publish(context.data)
            vars(context).pop("data")  # closures read what was published


TASK = ArrayTask()
