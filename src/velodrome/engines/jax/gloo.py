"""Makes gloo listen at one address. JAX itself lets it listen at that of the host's name, and has no option for it; the
private function that makes its CPU client takes the collectives to use."""

from __future__ import annotations


def listen_at(address: str) -> bool:
    """Let collectives of CPUs listen at an address of this host; called before JAX makes its first device. Whether this
    JAX has what that takes: it trains without, too."""
    try:
        from jax._src import distributed, xla_bridge
        from jaxlib import _jax

        make_collectives, make_client = _jax.make_gloo_tcp_collectives, xla_bridge.make_cpu_client
        register = xla_bridge.register_backend_factory
    except (ImportError, AttributeError):
        return False

    def client() -> object:
        joined = distributed.global_state.client
        return make_client(make_collectives(distributed_client=joined, hostname=address))

    register("cpu", client, priority=0, fail_quietly=False)
    return True
