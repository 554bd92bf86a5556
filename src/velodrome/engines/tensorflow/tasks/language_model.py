"""Language modelling under TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velodrome.engines.tensorflow.cluster import PeerMonitor
from velodrome.engines.tensorflow.flat import FlatModel
from velodrome.engines.tensorflow.tasks.base import TensorFlowTask
from velodrome.worker.context import Context

if TYPE_CHECKING:
    from velodrome.engines.tensorflow.feeds import Feed
    from velodrome.engines.tensorflow.parameter_server import ParameterServer


class LanguageModelTask(TensorFlowTask):
    """Rows of a text; closures carry their words."""

    def network(self, context: Context) -> FlatModel:
        from velodrome.engines.tensorflow.text_network import text_network

        return text_network(context.job, context.data, context.saved_model)

    def feed(self, context: Context, ranks: range) -> Feed:
        from velodrome.engines.tensorflow.feeds import TextFeed

        return TextFeed(context, ranks)

    def dispatcher(self, context: Context, network: Any, strategy: Any, monitor: PeerMonitor) -> ParameterServer:
        from velodrome.engines.tensorflow.dispatchers import TextDispatcher

        return TextDispatcher(context, network, strategy, monitor)


TASK = LanguageModelTask()
