"""Optax' own optimizers for the names that jobs use. Their updates are multiplied with the learning rate elsewhere."""

from __future__ import annotations

import optax

from velodrome.job.job import Job
from velodrome.job.optimization import ADAM_BETAS, MOMENTUM


def make_optimizer(job: Job) -> optax.GradientTransformation:
    """What turns gradients into the step that is subtracted, for a learning rate of 1."""
    adam = optax.scale_by_adam(*ADAM_BETAS, eps=1e-8)
    if job.optimizer == "adamw":
        return optax.chain(adam, optax.add_decayed_weights(job.decay_of_weights))
    kinds = {"sgd": optax.identity(), "momentum": optax.trace(MOMENTUM, nesterov=job.nesterov), "adam": adam}
    chosen = kinds[job.optimizer]
    return optax.chain(optax.add_decayed_weights(job.decay_of_weights), chosen) if job.decay_of_weights else chosen
